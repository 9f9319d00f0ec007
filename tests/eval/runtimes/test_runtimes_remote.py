"""`Runtime`, `SubprocessRuntime` and `LocalRuntime`: the same rollout, wherever the environment lives."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from hud.environment import Task, load_environment
from hud.environment.channel import ControlServer
from hud.errors import AgentFault, EnvironmentFault, InfrastructureFault, NotFoundError, UsageError
from hud.eval import ForkRuntime, LocalRuntime, Runtime, SubprocessRuntime
from hud.eval.rollouts import rollout
from hud.trace import ToolCall
from hud.trace.recording.recorder import NullRecorder

SOURCE = """
import os, sys
from hud.environment import Environment

env = Environment("letters", version="2.0")
print("x" * 100_000)

@env.tool
async def peek() -> str:
    print("y" * 200_000)
    return "r"

@env.tool
async def leave(status: int) -> str:
    print("leaving early", file=sys.stderr)
    os._exit(status)

@env.tool
async def read() -> str:
    return sys.stdin.read()

@env.template(id="count")
async def count(word: str = "berry"):
    answer = yield f"How many r in {word}?"
    peeks = [call for call in answer.trace.tool_calls] if answer.trace else []
    yield 1.0 if answer == "3" else 0.0
"""
TASK = Task(env="letters", id="count", args={"word": "strawberry"})


@pytest.fixture
def source(tmp_path) -> Path:
    path = tmp_path / "env.py"
    path.write_text(SOURCE)
    return path


@asynccontextmanager
async def listening(source):
    """Serve the environment on a port of this process; yields its address."""
    server = ControlServer(load_environment(source))
    sockets = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    yield f"tcp://127.0.0.1:{sockets.sockets[0].getsockname()[1]}"
    sockets.close()
    await server.sessions.close()


async def play(run):
    result = await run.call_tool(ToolCall(id="1", name="peek"))
    assert result.text == "r"
    run.trace.content = "3"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "path", "function", "fork", "subprocess", "tcp"])
async def test_the_same_rollout_everywhere(source, kind):
    before = set(psutil.Process().children(recursive=True))
    async with listening(source) as address:
        environment = load_environment(source)
        runtime = {
            "local": lambda: LocalRuntime(environment),
            "path": lambda: LocalRuntime(source),
            "function": lambda: LocalRuntime(lambda task: environment),
            "fork": lambda: ForkRuntime(source),
            "subprocess": lambda: SubprocessRuntime(source),
            "tcp": lambda: Runtime(address),
        }[kind]()
        run = await rollout(TASK, play, runtime=runtime, recorder=NullRecorder())
        assert run.error is None
        assert (run.prompt, run.reward) == ("How many r in strawberry?", 1.0)
        assert [tool.name for tool in run.tools] == ["peek", "leave", "read"]
        if hasattr(runtime, "aclose"):
            await runtime.aclose()
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.slow
async def test_a_path_is_loaded_once_in_process(source):
    source.write_text(SOURCE + "\nopen(__file__ + '.loads', 'a').write('x')\n")
    runtime = LocalRuntime(source)
    for _ in range(3):
        async with runtime(TASK) as connection:
            assert connection.name == "letters"
    assert source.with_name("env.py.loads").read_text() == "x"


def test_a_bare_row_needs_an_environment():
    with pytest.raises(UsageError, match=r"not loaded in this process; pass runtime="):
        LocalRuntime()(TASK)


async def test_a_subprocess_that_dies_tells_how_and_the_last_words(source):
    with pytest.raises(AgentFault, match="exited with 3; it last said: leaving early"):
        async with SubprocessRuntime(source)(TASK) as connection:
            await connection.call_tool("leave", {"status": 3})


async def test_a_subprocess_that_is_killed_is_told_as_such(source):
    with pytest.raises(EnvironmentFault, match="killed by SIGKILL"):
        async with SubprocessRuntime(source)(TASK) as connection:
            os.kill(int(connection.address.partition(":")[2]), signal.SIGKILL)
            await connection.start("count", {})


@pytest.mark.slow
async def test_a_subprocess_has_an_input_of_its_own(source):
    async with SubprocessRuntime(source)(TASK) as connection:
        assert (await connection.call_tool("read", {}, timeout=5)).result.text == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("def broken(:", UsageError, r"env\.py:1: "),
        ("import os; os._exit(4)", EnvironmentFault, "did not come up: its process exited with 4"),
        ("import time; time.sleep(60)", EnvironmentFault, r"did not come up within 1 s"),
    ],
)
async def test_a_subprocess_that_cannot_load_its_source(source, text, error, words):
    before = set(psutil.Process().children(recursive=True))
    source.write_text(text)
    with pytest.raises(error, match=words):
        # The first two end by themselves, on a busy machine after more than a second.
        async with SubprocessRuntime(source, ready_timeout=1 if "sleep" in text else 30)(TASK):
            pass
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.slow
async def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(NotFoundError):
        LocalRuntime(tmp_path / "nothing.py")(TASK)
    with pytest.raises(UsageError, match=r"nothing\.py"):
        async with SubprocessRuntime(tmp_path / "nothing.py")(TASK):
            pass


async def test_nobody_at_the_address_is_an_infrastructure_fault():
    runtime = Runtime("tcp://127.0.0.1:1", {"ready_timeout": 0.3})
    with pytest.raises(InfrastructureFault, match="Is `hud serve` running there"):
        async with runtime(TASK):
            pass


@pytest.mark.parametrize(
    "url", ["http://host:80", "tcp://host", "tcp://:80", "host:80", "tcp://h:x"]
)
def test_an_address_is_tcp_host_and_port(url):
    with pytest.raises(UsageError, match="tcp://host:port"):
        Runtime(url)


@pytest.mark.slow
async def test_connections_to_one_server_have_states_of_their_own(source):
    async with (
        listening(source) as address,
        Runtime(address)(TASK) as first,
        Runtime(address)(TASK) as second,
    ):
        await first.start("count", {"word": "a"})
        await second.start("count", {"word": "b"})
        assert (await first.grade("3", None))["score"] == 1.0
        assert (await second.grade("2", None))["score"] == 0.0
