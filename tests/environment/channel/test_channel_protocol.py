"""The control channel, frame by frame: what any client may send, and what it hears."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from hud.environment import Environment
from hud.environment.channel import ControlServer
from hud.environment.channel.framing import MAX_FRAME_BYTES

env = Environment("letters", version="1.2.3", reward_range=(-1.0, 1.0))
events: list[str] = []


@pytest.fixture(autouse=True)
def _fresh_events():
    events.clear()


@env.initialize
async def begin():
    events.append("begin")


@env.shutdown
async def finish():
    events.append("finish")


@env.tool
async def peek(seconds: float = 0.0) -> str:
    """Look at a letter."""
    await asyncio.sleep(seconds)
    return "r"


@env.template(id="count", description="Count letters")
async def count(word: str, times: int = 1):
    answer = yield f"How many r in {word * times}?"
    yield float(answer == "3")


@env.template(id="slow")
async def slow(setup: float = 0.0, grading: float = 0.0):
    await asyncio.sleep(setup)
    yield "wait"
    await asyncio.sleep(grading)
    yield 1.0


@env.template(id="broken")
async def broken(where: str):
    if where == "setup":
        raise ValueError("no letters left")
    yield "?"
    raise ValueError("cannot count")


class Client:
    """A client that sends whatever it is told to."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.last = 0

    def send(self, method, params=None, **extra):
        self.last += 1
        frame = {"jsonrpc": "2.0", "id": self.last, "method": method, "params": params or {}}
        self.raw(json.dumps({**frame, **extra}).encode())
        return self.last

    def raw(self, line):
        self.writer.write(line + b"\n")

    async def hear(self):
        async with asyncio.timeout(5):
            line = await self.reader.readline()
        return json.loads(line) if line else None

    async def call(self, method, params=None):
        """Return the result, or the error's code and message."""
        identifier = self.send(method, params)
        frame = await self.hear()
        assert frame["id"] == identifier
        if "error" in frame:
            return frame["error"]["code"], frame["error"]["message"]
        return frame["result"]

    async def hang_up(self):
        self.writer.close()
        await self.writer.wait_closed()
        await asyncio.sleep(0.02)


@asynccontextmanager
async def served(**options):
    """Serve the environment; yields a function that connects."""
    server = ControlServer(env, **options)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0, limit=server.max_frame)
    clients = []

    async def connect():
        port = listening.sockets[0].getsockname()[1]
        clients.append(
            Client(*await asyncio.open_connection("127.0.0.1", port, limit=MAX_FRAME_BYTES))
        )
        return clients[-1]

    try:
        yield connect
    finally:
        for client in clients:
            client.writer.close()
        listening.close()
        await asyncio.sleep(0.02)
        await server.close()


async def test_a_rollout_from_hello_to_bye():
    async with served() as connect:
        client = await connect()
        hello = await client.call("hello")
        assert hello["session_id"].startswith("sess-")
        assert hello["env"] == {"name": "letters", "version": "1.2.3"}
        # Clients that know no tools.call find the environment's tools there.
        assert [binding["name"] for binding in hello["bindings"]] == ["environment-tools"]
        tasks = (await client.call("tasks.list"))["tasks"]
        assert [task["id"] for task in tasks] == ["count", "slow", "broken"]
        assert tasks[0]["description"] == "Count letters"
        assert tasks[0]["args"]["required"] == ["word"]
        started = await client.call("tasks.start", {"id": "count", "args": {"word": "berry"}})
        assert started == {"prompt": "How many r in berry?"}
        tools = (await client.call("tools.list"))["tools"]
        assert [tool["name"] for tool in tools] == ["peek"]
        outcome = await client.call("tools.call", {"name": "peek", "arguments": {}})
        assert outcome["result"]["content"] == [{"type": "text", "text": "r"}]
        assert (await client.call("tasks.grade", {"answer": "3"}))["score"] == 1.0
        assert await client.call("bye") == {"goodbye": True}
        assert await client.hear() is None
    assert events == ["begin", "finish"]


async def test_tasks_come_first_without_a_hello_and_arguments_are_coerced():
    async with served() as connect:
        client = await connect()
        args = {"word": "berry", "times": "2"}
        started = await client.call("tasks.start", {"id": "count", "args": args})
        assert started["prompt"] == "How many r in berryberry?"


@pytest.mark.parametrize(
    ("method", "params", "code", "words"),
    [
        ("tasks.dance", {}, -32601, "method not found: tasks.dance"),
        ("tasks.start", {"id": 7}, -32602, "id must be a string"),
        ("tasks.start", {"id": "count", "args": []}, -32602, "args must be an object"),
        ("tasks.start", {"id": "nothing"}, -32602, "unknown task 'nothing'"),
        ("hello", {"session_id": 7}, -32602, "session_id must be a string"),
        ("hello", {"session_id": "sess-0"}, -32600, "unknown session sess-0"),
        ("tasks.grade", {"answer": "3"}, -32600, "no task in progress"),
        ("tools.call", {"name": None}, -32602, "name must be a string"),
        ("tools.call", {"name": "peek", "arguments": 3}, -32602, "arguments must be an object"),
        ("tasks.start", {"id": "count", "args": {}}, -32000, "word"),
        ("tasks.start", {"id": "broken", "args": {"where": "setup"}}, -32000, "no letters left"),
    ],
)
async def test_errors_have_the_codes_that_clients_know(method, params, code, words):
    async with served() as connect:
        client = await connect()
        heard, message = await client.call(method, params)
        assert heard == code
        assert words in message
        # The connection is none the worse for it.
        assert (await client.call("hello"))["env"]["name"] == "letters"


async def test_an_exception_while_grading_is_told_as_the_grader_s():
    async with served() as connect:
        client = await connect()
        await client.call("tasks.start", {"id": "broken", "args": {"where": "grade"}})
        client.send("tasks.grade", {"answer": "3"})
        error = (await client.hear())["error"]
        assert error["code"] == -32000
        assert "cannot count" in error["message"]
        assert error["data"] == {"kind": "grader"}


@pytest.mark.parametrize("name", ["connections", "workspace_routes"])
async def test_ways_out_that_an_environment_cannot_keep_to_its_agents_are_refused(name):
    async with served() as connect:
        client = await connect()
        code, message = await client.call("hello", {name: [{"name": "github"}]})
        assert (code, message) == (-32602, f"hello: this environment takes no {name}")
        assert "session_id" in await client.call("hello", {name: []})


async def test_a_tunnel_to_a_capability_that_is_not_there_is_refused_and_closed():
    async with served() as connect:
        client = await connect()
        code, message = await client.call("tunnel.open", {"capability": "shell"})
        assert (code, message) == (
            -32000,
            "environment 'letters' has no capability 'shell' (there are: none)",
        )
        assert await client.hear() is None
        client = await connect()
        assert (await client.call("tunnel.open", {"capability": 1}))[0] == -32602
        client = await connect()
        await client.call("hello")
        assert (await client.call("tunnel.open", {"capability": "shell"}))[0] == -32601


async def test_a_frame_that_is_too_long_gets_an_error_without_an_id():
    async with served(max_frame=4096) as connect:
        client = await connect()
        client.raw(b"x" * 20_000)
        frame = await client.hear()
        assert frame["id"] is None
        assert frame["error"]["code"] == -32000
        assert await client.hear() is None


@pytest.mark.parametrize("line", [b"{not json", b"[1, 2]", b'"text"', b"\xff\xfe", b"[" * 5000])
async def test_a_frame_that_is_no_json_object_ends_the_connection(line):
    async with served() as connect:
        client = await connect()
        client.raw(line)
        assert await client.hear() is None
        other = await connect()
        assert (await other.call("hello"))["env"]["name"] == "letters"


async def test_an_answer_beyond_the_limit_is_an_error_not_a_broken_stream():
    async with served(max_frame=4096) as connect:
        client = await connect()
        args = {"word": "x" * 1000, "times": 8}
        code, message = await client.call("tasks.start", {"id": "count", "args": args})
        assert code == -32000
        assert "at most 4096" in message
        assert (await client.call("hello"))["env"]["name"] == "letters"


async def test_requests_without_an_id_are_done_silently_and_string_ids_are_echoed():
    async with served() as connect:
        client = await connect()
        client.raw(b'{"jsonrpc": "2.0", "method": "hello"}')
        client.raw(b'{"jsonrpc": "2.0", "id": "seven", "method": "tasks.list"}')
        assert (await client.hear())["id"] == "seven"


async def test_what_models_really_write_survives_the_way():
    async with served() as connect:
        client = await connect()
        word = "\ud800 \U0001f600 " + "9" * 30
        client.send("tasks.start", {"id": "count", "args": {"word": word, "times": 1}})
        assert (await client.hear())["result"]["prompt"] == f"How many r in {word}?"


async def test_a_dropped_connection_parks_its_task_for_a_bare_grade():
    async with served() as connect:
        client = await connect()
        await client.call("tasks.start", {"id": "count", "args": {"word": "berry"}})
        await client.hang_up()
        other = await connect()
        assert (await other.call("tasks.grade", {"answer": "3"}))["score"] == 1.0
        assert await other.call("tasks.grade", {"answer": "3"}) == (-32600, "no task in progress")


async def test_a_parked_session_is_resumed_by_its_id_only_while_nobody_is_connected_to_it():
    async with served() as connect:
        client = await connect()
        session = (await client.call("hello"))["session_id"]
        await client.call("tasks.start", {"id": "count", "args": {"word": "berry"}})
        other = await connect()
        code, message = await other.call("hello", {"session_id": session})
        assert code == -32600
        assert "live connection" in message
        await client.hang_up()
        assert (await other.call("hello", {"session_id": session}))["session_id"] == session
        assert (await other.call("tasks.grade", {"answer": "2"}))["score"] == 0.0
        assert events.count("begin") == 1


async def test_a_parked_task_ends_when_nobody_comes_back_to_it():
    async with served(parked_seconds=1.0) as connect:
        left, back = await connect(), await connect()
        sessions = []
        for client in (left, back):
            sessions.append((await client.call("hello"))["session_id"])
            await client.call("tasks.start", {"id": "count", "args": {"word": "berry"}})
            await client.hang_up()
        other = await connect()
        await other.call("hello", {"session_id": sessions[1]})
        await asyncio.sleep(1.2)
        assert events == ["begin", "begin", "finish"]
        code, message = await (await connect()).call("hello", {"session_id": sessions[0]})
        assert (code, message) == (-32600, f"hello: unknown session {sessions[0]}")
        assert (await other.call("tasks.grade", {"answer": "3"}))["score"] == 1.0


async def test_our_own_client_s_tasks_are_not_parked():
    async with served() as connect:
        client = await connect()
        await client.call("hello", {"client": "openhud"})
        await client.call("tasks.start", {"id": "count", "args": {"word": "berry"}})
        await client.hang_up()
        other = await connect()
        assert await other.call("tasks.grade", {"answer": "3"}) == (-32600, "no task in progress")
        assert events.count("finish") == 1


async def test_several_parked_tasks_are_named_not_guessed():
    async with served() as connect:
        sessions = []
        for _ in range(2):
            client = await connect()
            sessions.append((await client.call("hello"))["session_id"])
            await client.call("tasks.start", {"id": "count", "args": {"word": "berry"}})
            await client.hang_up()
        code, message = await (await connect()).call("tasks.grade", {"answer": "3"})
        assert code == -32600
        assert all(session in message for session in sessions)


async def test_a_session_with_nothing_started_ends_with_its_connection():
    async with served() as connect:
        client = await connect()
        session = (await client.call("hello"))["session_id"]
        await client.call("tools.call", {"name": "peek"})
        await client.hang_up()
        assert events == ["begin", "finish"]
        code, message = await (await connect()).call("hello", {"session_id": session})
        assert (code, message) == (-32600, f"hello: unknown session {session}")


async def test_cancel_interrupts_a_slow_start_and_heartbeats_are_answered_meanwhile():
    async with served() as connect:
        client = await connect()
        session = (await client.call("hello"))["session_id"]
        slow_id = client.send("tasks.start", {"id": "slow", "args": {"setup": 60}})
        assert (await client.call("hello", {"session_id": session}))["session_id"] == session
        other = await client.call("hello", {"session_id": "sess-other"})
        assert other == (-32600, "hello: unknown session sess-other")
        cancel_id = client.send("tasks.cancel")
        interrupted, cancelled = await client.hear(), await client.hear()
        assert interrupted["id"] == slow_id
        assert interrupted["error"]["code"] == -32000
        assert interrupted["error"]["message"] == "tasks.cancel interrupted the task"
        assert cancelled == {"jsonrpc": "2.0", "id": cancel_id, "result": {"cancelled": True}}


async def test_a_start_that_is_cancelled_in_the_same_breath_is_answered_too():
    async with served() as connect:
        client = await connect()
        client.send("tasks.start", {"id": "slow", "args": {"setup": 60}})
        client.send("tasks.cancel")
        assert (await client.hear())["error"]["code"] == -32000
        assert (await client.hear())["result"] == {"cancelled": True}


async def test_a_second_task_call_is_refused_while_one_runs():
    async with served() as connect:
        client = await connect()
        client.send("tasks.start", {"id": "slow", "args": {"setup": 0.2}})
        code, message = await client.call("tasks.grade", {"answer": ""})
        assert (code, message) == (-32600, "tasks.grade: a task call is still running")
        assert (await client.hear())["result"] == {"prompt": "wait"}


async def test_tool_calls_run_side_by_side():
    async with served() as connect:
        client = await connect()
        started = asyncio.get_running_loop().time()
        for _ in range(5):
            client.send("tools.call", {"name": "peek", "arguments": {"seconds": 0.2}})
        for _ in range(5):
            assert (await client.hear())["result"]["result"]["isError"] is False
        assert asyncio.get_running_loop().time() - started < 0.8
        assert events == ["begin"]


async def test_a_start_finishes_and_parks_when_the_client_hangs_up_meanwhile():
    async with served() as connect:
        client = await connect()
        client.send("tasks.start", {"id": "slow", "args": {"setup": 0.05}})
        await asyncio.sleep(0.01)
        await client.hang_up()
        await asyncio.sleep(0.1)
        assert (await (await connect()).call("tasks.grade", {"answer": ""}))["score"] == 1.0
