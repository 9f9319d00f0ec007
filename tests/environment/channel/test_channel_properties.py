"""Promises of the control channel that hold for whatever is sent."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.environment import Environment
from hud.environment.channel import ControlServer
from hud.environment.streams import relay

METHODS = (
    "hello",
    "tasks.list",
    "tasks.start",
    "tasks.grade",
    "tasks.cancel",
    "tools.list",
    "tools.call",
    "run.observe",
    "subagents.delegate",
    "subagents.open",
    "subagents.close",
    "tunnel.open",
    "bye",
    "erase",
)
FIELDS = ("id", "args", "answer", "name", "arguments", "timeout", "session_id", "capability")
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(("count", "peek", "berry", "sess-00000000"))
    | st.text(max_size=5)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
PARAMS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4) | VALUES
REQUESTS = st.lists(st.tuples(st.sampled_from(METHODS), PARAMS), min_size=1, max_size=6)

env = Environment("letters")


@env.tool
def peek(at: int = 0) -> str:
    return "berry"[at]


@env.template(id="count")
async def count(word: str = "berry"):
    answer = yield f"How many r in {word}?"
    yield float(answer == str(word.count("r")))


async def talk(port, requests):
    """Send requests one after another; returns the answers, as far as the server gives any."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    answers = []
    try:
        for number, (method, params) in enumerate(requests, 1):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            writer.write(json.dumps(request).encode() + b"\n")
            async with asyncio.timeout(10):
                line = await reader.readline()
            if not line:
                break
            answers.append(json.loads(line))
    finally:
        writer.close()
    return answers


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(REQUESTS)
def test_every_request_is_answered_and_the_next_client_finds_all_in_order(requests):
    async def check():
        server = ControlServer(env)
        listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        answers = await talk(port, requests)
        assert [answer["id"] for answer in answers] == list(range(1, len(answers) + 1))
        for answer in answers:
            assert ("result" in answer) != ("error" in answer)
            assert isinstance(answer.get("error", {"code": 0})["code"], int)
        ends = [number for number, (method, _) in enumerate(requests) if method == "bye"]
        if requests[0][0] != "tunnel.open" and not ends:
            assert len(answers) == len(requests)
        played = [("tasks.start", {"id": "count"}), ("tasks.grade", {"answer": "2"})]
        assert (await talk(port, played))[1]["result"]["score"] == 1.0
        listening.close()
        await server.close()

    asyncio.run(check())


CHUNKS = st.lists(st.binary(max_size=300) | st.just(b"x" * 200_000), max_size=5)


@settings(max_examples=25, deadline=None)
@given(CHUNKS, CHUNKS)
def test_a_tunnel_changes_nothing_either_way(there, back):
    async def check():
        ends = [socket.socketpair(), socket.socketpair()]
        streams = [[await asyncio.open_connection(sock=end) for end in pair] for pair in ends]
        (one, near), (other, far) = streams
        carrying = asyncio.create_task(relay(near, far))

        async def say(stream, chunks):
            for chunk in chunks:
                stream[1].write(chunk)
                await stream[1].drain()
            stream[1].write_eof()

        async with asyncio.timeout(20):
            heard = await asyncio.gather(
                say(one, there), say(other, back), other[0].read(-1), one[0].read(-1)
            )
            await carrying
        assert heard[2:] == [b"".join(there), b"".join(back)]
        for stream in (one, near, other, far):
            stream[1].close()

    asyncio.run(check())
