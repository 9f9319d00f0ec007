"""The conformance suite of `RolloutRuntime`: each kind opens a fresh environment for a run, and frees it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.strangers import installer

from hud.agents import ScriptedAgent
from hud.environment import load_environment
from hud.environment.channel import ControlServer
from hud.errors import UsageError
from hud.eval import Job, NullRecorder, Taskset
from hud.eval.runtimes.registry import runtime_kinds, runtime_named
from hud.eval.runtimes.rollout_runtime import RolloutRuntime, as_runtime
from hud.trace import ToolCall

SOURCE = '''
import asyncio
from pathlib import Path

from hud import Environment

env = Environment("counter")
OPEN, SLOW = (Path(__file__).with_name(name) for name in ("open", "slow"))


@env.initialize
async def start():
    env.state.count = 0
    with OPEN.open("a") as file:
        file.write("+")
    if SLOW.exists():
        await asyncio.sleep(60)


@env.shutdown
async def stop():
    with OPEN.open("a") as file:
        file.write("-")


@env.tool()
async def add(amount: int) -> int:
    """Add to the count."""
    env.state.count += amount
    return env.state.count


@env.template()
async def count(to: int, broken: bool = False):
    """Count up to a number."""
    if broken:
        raise RuntimeError("no counter today")
    answer = yield f"Count to {to}."
    yield 1.0 if answer == str(env.state.count) == str(to) else 0.0


tasks = [count(to=2), count(to=3), count(to=4, broken=True)]
'''


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr("hud.eval.job.default_recorder", NullRecorder)
    path = tmp_path / "env.py"
    path.write_text(SOURCE)
    return path


@asynccontextmanager
async def named(name, source):
    runtime = runtime_named(name, source)
    yield runtime
    await runtime.aclose()


@asynccontextmanager
async def of_its_own_file(source):
    """The kind's form for several environments."""
    runtime = runtime_named("fork")
    yield runtime
    await runtime.aclose()


@asynccontextmanager
async def over_tcp(source):
    server = ControlServer(load_environment(source))
    listener = await asyncio.start_server(server.connected, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    runtime = runtime_named(f"tcp://127.0.0.1:{port}")
    yield runtime
    await runtime.aclose()
    listener.close()


@asynccontextmanager
async def of_a_function(source):
    yield as_runtime(runtime_named("local", source).__call__)


IMPLEMENTATIONS = {
    # A container serves what its image holds: tests/eval/runtimes/test_containers.py.
    **{
        name: lambda source, name=name: named(name, source)
        for name in runtime_kinds()
        if name != "container"
    },
    "fork, by file": of_its_own_file,
    "tcp": over_tcp,
    "function": of_a_function,
}


@pytest.fixture(params=IMPLEMENTATIONS)
async def runtime(request, source):
    async with IMPLEMENTATIONS[request.param](source) as opened:
        yield opened


def tasks(source) -> Taskset:
    return Taskset(
        "count", [task for task in Taskset.from_file(str(source)) if task.args["to"] < 4]
    )


async def until(holds):
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def counted(run):
    """Call the tool once for each unit, and answer with the last result."""
    total = "0"
    for _ in range(run.task.args["to"]):
        total = (await run.call_tool(ToolCall(id="1", name="add", arguments={"amount": 1}))).text
    return total


@pytest.mark.slow
async def test_each_run_has_an_environment_of_its_own(runtime, source):
    assert isinstance(runtime, RolloutRuntime)
    job: Job = await tasks(source).run(ScriptedAgent(counted), runtime=runtime, group=2)
    assert [run.reward for run in job.runs] == [1.0] * 4, [run.trace.error for run in job.runs]


@pytest.mark.slow
async def test_what_a_run_opened_is_closed_with_it(runtime, source):
    await tasks(source).run(ScriptedAgent(counted), runtime=runtime)
    marks = source.with_name("open").read_text()
    assert marks.count("+") == marks.count("-") == 2


@pytest.mark.slow
async def test_a_broken_environment_fails_its_run_alone(runtime, source):
    job = await Taskset.from_file(str(source)).run(ScriptedAgent(counted), runtime=runtime)
    assert [run.failure_kind for run in job.runs] == [None, None, "environment"]
    assert "no counter today" in job.runs[2].trace.error
    assert job.reward == 1.0


@pytest.mark.slow
async def test_a_closed_runtime_opens_again(runtime, source):
    for _ in range(2):
        job = await tasks(source).run(ScriptedAgent(counted), runtime=runtime)
        assert job.reward == 1.0
        await runtime.aclose()


@pytest.mark.parametrize("opens_slowly", [False, True])
async def test_a_run_that_is_cancelled_frees_its_environment(runtime, source, opens_slowly):
    async def forever(run):
        await run.call_tool(ToolCall(id="1", name="add", arguments={"amount": 1}))
        await asyncio.Event().wait()

    if opens_slowly:
        source.with_name("slow").touch()

    playing = asyncio.ensure_future(tasks(source).run(ScriptedAgent(forever), runtime=runtime))
    marks = source.with_name("open")
    await until(lambda: marks.exists() and marks.read_text().count("+") == 2)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    await runtime.aclose()
    await until(lambda: marks.read_text().count("-") == 2)


def test_an_unknown_name_lists_the_kinds():
    with pytest.raises(
        UsageError, match=r"local, fork, subprocess, container, hud, hosted and tcp://host:port"
    ):
        runtime_named("docker")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("hosted", "strange_plug:kind", "has the name of a runtime of the platform"),
        ("docker", "strange_plug:kind", "is no class or function of an environment"),
    ],
)
def test_a_plug_that_cannot_be_used_is_refused(tmp_path, monkeypatch, name, value, reason):
    installer(tmp_path, monkeypatch)("hud.runtimes", name, "kind = 3\n", value)
    with pytest.raises(UsageError, match=reason):
        runtime_named(name, "env.py")
