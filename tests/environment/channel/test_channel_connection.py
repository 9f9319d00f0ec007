"""`RemoteConnection`: another process's environment, with the faults of one's own."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from contextlib import asynccontextmanager

import orjson
import pytest

from hud.environment import Environment
from hud.environment.channel import ControlServer, RemoteConnection, serve
from hud.environment.channel.client import remote_connection, remote_run
from hud.errors import EnvironmentFault, GraderFault, InfrastructureFault, UsageError
from hud.trace import Message, Step, ToolCall, ToolResult, ToolStep, Trace

env = Environment("letters", version="1.2.3", reward_range=(-1.0, 1.0))


@env.tool
async def peek(seconds: float = 0.0) -> str:
    """Look at a letter."""
    await asyncio.sleep(seconds)
    return "r"


@env.tool
def fail() -> str:
    """Fail."""
    raise ValueError("no letters left")


@env.tool
def keep(value: int) -> str:
    """Keep a number."""
    env.state.kept = value
    return "kept"


@env.observe
def state():
    return {"kept": getattr(env.state, "kept", None)} if hasattr(env.state, "kept") else {}


@env.template(id="count")
async def count(fault: str = ""):
    if fault == "setup":
        raise ValueError("no letters left")
    answer = yield [Message(content="How many r?")] if fault == "messages" else "How many r?"
    if fault == "grade":
        raise ValueError("cannot count")
    used = [step for step in answer.trace.steps if isinstance(step, ToolStep)]
    yield {"score": float(answer == "3"), "info": {"tools": len(used)}}


@env.shutdown
async def finish():
    if getattr(env.state, "kept", None) == 13:
        raise RuntimeError("the lights stayed on")


@asynccontextmanager
async def connected(environment=env, **options):
    server = ControlServer(environment, **options)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    try:
        yield await RemoteConnection.dial("127.0.0.1", listening.sockets[0].getsockname()[1])
    finally:
        listening.close()
        await server.sessions.close()


@asynccontextmanager
async def answering(*lines, then="close"):
    """A server that answers each request with the next of `lines`, whatever was asked."""

    async def answer(reader, writer):
        for line in lines:
            if not (request := await reader.readline()):
                return
            number = orjson.loads(request)["id"]
            writer.write(line.replace(b"ID", str(number).encode()) + b"\n")
        if then == "close":
            await reader.readline()
        else:
            await asyncio.sleep(60)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


HELLO = b'{"id": ID, "result": {"session_id": "s", "env": {"name": "x", "version": "1"}}}'


async def test_what_connecting_takes_in_one_task_alone_comes_with_its_prompt():
    own = Environment("robots")

    @own.template(id="grasp")
    async def grasp(token: str = ""):
        bindings = {"robot": {"token": token}} if token else {}
        yield {"prompt": [{"role": "user", "content": "Grasp."}], "bindings": bindings}
        yield 1.0

    server = ControlServer(own)
    listening = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with own.run() as here:
        there = await RemoteConnection.dial("127.0.0.1", port)
        for args, bindings in (({"token": "t1"}, {"robot": {"token": "t1"}}), ({}, {})):
            frames = [await world.start("grasp", args) for world in (here, there)]
            assert [frame.bindings for frame in frames] == [bindings] * 2
            assert frames[0].prompt == frames[1].prompt
            assert frames[0].prompt[0].role == "user"
        await there.close()
    listening.close()
    await server.close()


async def test_a_machine_that_is_gone_without_a_word_is_noticed():
    server = ControlServer(Environment("far"))
    accepted = asyncio.Queue()

    async def connected(reader, writer):
        accepted.put_nowait(writer)
        await server.connected(reader, writer)

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    connection = await RemoteConnection.dial("127.0.0.1", port)
    for writer in (connection.writer, await accepted.get()):
        stream = writer.get_extra_info("socket")
        assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        probes = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
        between = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        idle = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        assert idle + probes * between <= 120
    await connection.close()
    listening.close()
    await server.close()


async def test_a_rollout_over_a_stream_is_like_one_in_process():
    async with connected() as connection:
        assert (connection.name, connection.version) == ("letters", "1.2.3")
        assert connection.reward_range == (-1.0, 1.0)
        assert [tool.name for tool in await connection.list_tools()] == ["peek", "fail", "keep"]
        assert (await connection.list_tasks())[0]["id"] == "count"
        assert (await connection.start("count", {})).prompt == "How many r?"
        outcome = await connection.call_tool("keep", {"value": 3})
        assert outcome.result == ToolResult.of_text("kept")
        assert outcome.observed == {"state": {"kept": 3}}
        failed = await connection.call_tool("fail", {})
        assert failed.result.is_error
        assert "no letters left" in failed.result.text
        trace = Trace(content="3")
        trace.record(ToolStep(call=ToolCall(id="1", name="peek"), result=outcome.result))
        trace.record(Step(source="system"))
        frame = await connection.grade("3", trace)
        assert (frame["score"], frame["info"]) == (1.0, {"tools": 1})
        await connection.close()


async def test_a_prompt_of_messages_arrives_as_messages():
    async with connected() as connection:
        prompt = (await connection.start("count", {"fault": "messages"})).prompt
        assert prompt == [Message(content="How many r?")]
        await connection.close()


async def test_faults_keep_their_kind_on_the_way():
    async with connected() as connection:
        with pytest.raises(EnvironmentFault, match="no letters left"):
            await connection.start("count", {"fault": "setup"})
        with pytest.raises(EnvironmentFault, match="fault"):
            await connection.start("count", {"fault": []})
        with pytest.raises(EnvironmentFault, match="unknown task 'dance'"):
            await connection.start("dance", {})
        await connection.start("count", {"fault": "grade"})
        with pytest.raises(GraderFault, match="cannot count"):
            await connection.grade("3", None)
        await connection.close()


async def test_a_shutdown_hook_that_raises_is_told():
    async with connected() as connection:
        await connection.call_tool("keep", {"value": 13})
        with pytest.raises(EnvironmentFault, match="the lights stayed on"):
            await connection.close()


async def test_a_call_that_was_given_up_leaves_the_next_ones_unharmed():
    async with connected() as connection:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.call_tool("peek", {"seconds": 0.2})
        assert (await connection.call_tool("peek", {})).result.text == "r"
        await asyncio.sleep(0.2)
        assert (await connection.call_tool("peek", {})).result.text == "r"
        await connection.close()


async def test_cancel_drops_the_task():
    async with connected() as connection:
        await connection.start("count", {})
        await connection.cancel()
        with pytest.raises(EnvironmentFault, match="no task in progress"):
            await connection.grade("3", None)
        await connection.close()


async def test_an_environment_that_stops_answering_a_tool_call_is_a_tool_error(monkeypatch):
    monkeypatch.setattr(remote_run, "TOOL_MARGIN_SECONDS", 0.05)
    monkeypatch.setattr(remote_connection, "HUNG_SECONDS", 0.05)
    async with answering(HELLO, then="hang") as port:
        connection = await RemoteConnection.dial("127.0.0.1", port)
        outcome = await connection.call_tool("peek", {}, timeout=0.05)
        assert outcome.result.is_error
        assert "no answer within 0.05 s" in outcome.result.text
        await connection.close()


async def test_a_broken_stream_is_the_environment_s_fault_also_for_later_calls():
    async with answering(HELLO) as port:
        connection = await RemoteConnection.dial("127.0.0.1", port)
        for _ in range(2):
            with pytest.raises(EnvironmentFault, match=r"at tcp://.* was lost: the connection"):
                await connection.start("count", {})
        await connection.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{nonsense", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"id": ID, "result": []}', "not of the control channel"),
        (b'{"id": ID, "result": {"prompt": 7}}', "not of the control channel"),
        (b'{"id": ID, "error": "broken"}', "broken"),
        (b'{"id": ID, "error": {"message": "m", "data": {"kind": "moon"}}}', "m"),
    ],
)
async def test_answers_that_make_no_sense_are_the_environment_s_fault(line, words):
    async with answering(HELLO, line) as port:
        connection = await RemoteConnection.dial("127.0.0.1", port)
        with pytest.raises(EnvironmentFault, match=words):
            await connection.start("count", {})
        await connection.close()


async def test_frames_that_nobody_asked_for_are_passed_over():
    noise = b'{"id": 99, "result": 1}\n{"method": "notice"}\n{"id": "x", "result": 2}\n'
    async with answering(HELLO, noise + b'{"id": ID, "result": {"prompt": "go"}}') as port:
        connection = await RemoteConnection.dial("127.0.0.1", port)
        assert (await connection.start("count", {})).prompt == "go"
        await connection.close()


async def test_a_server_without_tools_has_none():
    unknown = b'{"id": ID, "error": {"code": -32601, "message": "method not found: tools.list"}}'
    async with answering(HELLO, unknown) as port:
        connection = await RemoteConnection.dial("127.0.0.1", port)
        assert await connection.list_tools() == []
        await connection.close()


async def test_a_request_beyond_the_frame_limit_is_refused_before_it_is_sent():
    async with connected() as connection:
        connection.max_frame = 1000
        with pytest.raises(EnvironmentFault, match="at most 1,000"):
            await connection.grade("x" * 1000, None)
        assert (await connection.call_tool("peek", {})).result.text == "r"
        await connection.close()


async def test_nobody_listening_is_an_infrastructure_fault_after_a_bounded_wait():
    with pytest.raises(InfrastructureFault, match=r"No environment answers at tcp://127.0.0.1:1 "):
        await RemoteConnection.dial("127.0.0.1", 1, ready_timeout=0.3)


async def test_a_server_that_accepts_and_says_nothing_is_one_too():
    async with answering(then="hang") as port:
        with pytest.raises(InfrastructureFault, match="No environment answers"):
            await RemoteConnection.dial("127.0.0.1", port, ready_timeout=0.3)


async def test_a_refused_hello_is_final():
    refused = b'{"id": ID, "error": {"code": -32600, "message": "closed on Mondays"}}'
    async with answering(refused) as port:
        with pytest.raises(EnvironmentFault, match="closed on Mondays"):
            await RemoteConnection.dial("127.0.0.1", port)


async def test_serving_ends_when_it_is_cancelled_also_with_a_client_connected(capsys):
    serving = asyncio.create_task(serve(env, port=0))
    shown = ""
    async with asyncio.timeout(30):
        while not shown.endswith("\n"):
            await asyncio.sleep(0.01)
            shown += capsys.readouterr().out
    port = int(shown.partition("HUD_SERVE_PORT=")[2])
    connection = await RemoteConnection.dial("127.0.0.1", port)
    await connection.start("count", {})
    serving.cancel()
    async with asyncio.timeout(2):
        with pytest.raises(asyncio.CancelledError):
            await serving
    with pytest.raises(EnvironmentFault, match="was lost"):
        await connection.grade("3", None)
    await connection.close()


async def test_a_port_that_is_taken_is_told():
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    with pytest.raises(UsageError, match=f"127.0.0.1:{port} cannot be listened on"):
        await serve(env, port=port)
    taken.close()


@pytest.mark.slow
def test_the_module_announces_its_port_and_ends_with_its_input(tmp_path):
    source = tmp_path / "env.py"
    source.write_text("from hud.environment import Environment\nenv = Environment('x')\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "hud.environment.channel", str(source), "--follow-stdin"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline().startswith(b"HUD_SERVE_PORT=")
        process.stdin.close()
        assert process.wait(timeout=5) == 0
