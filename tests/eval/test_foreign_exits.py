"""Foreign code ends its own run, and nothing else, whatever it raises: the other runs of the job are played and graded."""

import asyncio
import signal
import sys
import threading

import pytest

from hud import Environment
from hud.agents import ScriptedAgent
from hud.environment import load_environment
from hud.errors import UsageError
from hud.eval import LocalRuntime, Taskset
from hud.foreign_code import is_failure
from hud.foreign_tasks import exits_contained
from hud.graders import EvaluationResult, SubScore, combine
from hud.trace import ToolCall, ToolSpec


class Odd(BaseException):
    pass


class Textless(Exception):
    def __str__(self):
        raise ValueError("no text")


async def leaked():
    """Await a task of one's own that was cancelled."""
    task = asyncio.ensure_future(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task


def raising(error):
    async def raises():
        raise error

    return raises


async def exits():
    sys.exit(3)


RAISES = {
    "sys.exit": exits,
    "a leaked CancelledError": leaked,
    "CancelledError": raising(asyncio.CancelledError()),
    "BaseExceptionGroup": raising(BaseExceptionGroup("several", [Odd(), SystemExit(1)])),
    "KeyboardInterrupt": raising(KeyboardInterrupt()),
    "GeneratorExit": raising(GeneratorExit()),
    "a BaseException": raising(Odd()),
    "an exception without a text": raising(Textless()),
}
KINDS = {
    "prompt": "environment",
    "grader": "grader",
    "after the reward": "grader",
    "closed": "agent",
    "combined grader": "grader",
    "agent": "agent",
    "agent's tool": "agent",
    "initialize": "environment",
    "observe": "environment",
}


BACKGROUND = set()


async def starts_a_task_that_exits():
    task = asyncio.create_task(exits())
    BACKGROUND.add(task)  # Else the loop may collect it.
    await asyncio.sleep(0.02)
    task.exception()


async def awaits_a_task_that_exits():
    await asyncio.create_task(exits())


class OwnTool:
    spec = ToolSpec(name="own")

    def __init__(self, raises):
        self.raises = raises

    async def call(self, arguments, timeout=None):
        await self.raises()


def world(place, raises):
    env = Environment("odd")
    hurt = {"now": False}

    async def at(name):
        if hurt["now"] and place == name:
            await raises()

    async def part():
        await at("combined grader")
        return SubScore(name="part", value=1.0)

    @env.template()
    async def t(bad: bool = False):
        hurt["now"] = bad
        await at("prompt")
        try:
            yield "go"
            await at("grader")
            yield await combine(part(), part())
            await at("after the reward")
        finally:
            await at("closed")

    @env.initialize
    async def initialize():
        if not hurt.setdefault("once", False) and place == "initialize":
            hurt["once"] = True
            await raises()

    @env.observe
    async def observe():
        await at("observe")
        return {}

    @env.shutdown
    async def shutdown():
        await at("shutdown")

    @env.tool
    async def use():
        await at("tool")

    async def play(run):
        await at("agent")
        if place == "closed" and hurt["now"]:
            raise ValueError("the agent gives up")
        if place == "agent's tool" and hurt["now"]:
            run.attach(OwnTool(raises))
            await run.call_tool(ToolCall(id="1", name="own", arguments={}))
        await run.call_tool(ToolCall(id="1", name="use", arguments={}))
        return "-"

    tasks = [t(bad=True).model_copy(update={"slug": "bad"}), t()]
    return Taskset("odd", tasks), ScriptedAgent(play)


@pytest.mark.parametrize("raised", RAISES)
@pytest.mark.parametrize("place", [*KINDS, "shutdown", "tool"])
async def test_only_its_own_run_fails(place, raised):
    tasks, agent = world(place, RAISES[raised])
    job = await tasks.run(agent, max_concurrent=1, runtime=LocalRuntime())
    bad, good = job.runs
    assert (good.reward, good.failure_kind) == (1.0, None)
    assert asyncio.current_task().cancelling() == 0
    if place == "tool":
        (result,) = [step.result for step in bad.trace.steps if step.source == "tool"]
        assert result.is_error
        assert bad.reward == 1.0
    elif place == "shutdown":
        assert bad.reward == 1.0
        assert "shutdown hook" in bad.trace.extra["close_error"]
    else:
        assert bad.failure_kind == KINDS[place]
        assert bad.trace.status == "error"


@pytest.mark.parametrize("place", ["prompt", "grader", "agent", "tool", "initialize"])
async def test_an_exit_in_a_task_of_foreign_code_ends_nothing_else(place):
    """asyncio ends its loop at a `SystemExit` in any task."""
    tasks, agent = world(place, starts_a_task_that_exits)
    job = await tasks.run(agent, max_concurrent=2, runtime=LocalRuntime())
    assert [(run.reward, run.failure_kind) for run in job.runs] == [(1.0, None)] * 2
    tasks, agent = world(place, awaits_a_task_that_exits)
    job = await tasks.run(agent, max_concurrent=1, runtime=LocalRuntime())
    bad, good = job.runs
    assert (good.reward, good.failure_kind) == (1.0, None)
    if place == "tool":
        assert bad.reward == 1.0
    else:
        assert bad.failure_kind == KINDS[place]
        assert "SystemExit in a background task: 3" in bad.error


async def test_tasks_outside_of_a_run_stay_as_they_are():
    tasks, agent = world("none", exits)
    await tasks.run(agent)

    async def own():
        return 1

    coroutine = own()
    task = asyncio.create_task(coroutine)
    assert task.get_coro() is coroutine
    assert await task == 1


async def test_a_task_that_is_cancelled_before_its_first_step_is_closed():
    with exits_contained():
        task = asyncio.create_task(asyncio.sleep(1))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def cancels_its_own_task():
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


async def cancels_its_own_task_at_the_end():
    asyncio.current_task().cancel()


@pytest.mark.filterwarnings(
    "ignore:coroutine:RuntimeWarning"
)  # Parts of a combined grade that never began.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("raises", [cancels_its_own_task, cancels_its_own_task_at_the_end])
@pytest.mark.parametrize("place", [*KINDS, "shutdown", "tool"])
async def test_foreign_code_that_cancels_its_own_task_fails_at_most_its_run(place, raises):
    tasks, agent = world(place, raises)
    job = await tasks.run(agent, max_concurrent=1, runtime=LocalRuntime())
    assert [run.slug for run in job.runs] == ["bad", "t"]
    assert (job.runs[1].reward, job.runs[1].failure_kind) == (1.0, None)
    assert job.runs[0].trace.status in ("completed", "error")
    assert not job.interrupted


async def test_a_cancelled_rollout_is_cancelled():
    begun = asyncio.Event()

    async def play(run):
        begun.set()
        await asyncio.sleep(60)

    tasks, _ = world("none", exits)
    playing = asyncio.create_task(tasks.run(ScriptedAgent(play), max_concurrent=1))
    await begun.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing


async def test_a_coroutine_that_is_closed_does_not_fail_its_code():
    seen = []

    async def suspended():
        try:
            await asyncio.sleep(60)
        except GeneratorExit as error:
            seen.append(is_failure(error))
            raise

    coroutine = suspended()
    coroutine.send(None)
    coroutine.close()
    assert seen == [False]


@pytest.mark.parametrize("handled", [signal.default_int_handler, "python"])
def test_ctrl_c_is_no_failure(handled):
    def handler(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler if handled == "python" else handled)
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    try:
        with pytest.raises(KeyboardInterrupt) as raised:
            timer.start()
            while True:
                pass
        assert not is_failure(raised.value)
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_exit_by_a_signal_handler_is_no_failure():
    def handler(*_):
        sys.exit(0)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(SystemExit) as raised:
            signal.raise_signal(signal.SIGTERM)
        assert not is_failure(raised.value)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_file_that_exits_is_a_sentence_with_its_place(tmp_path):
    (tmp_path / "env.py").write_text("import sys\n\nsys.exit('no key')\n")
    with pytest.raises(UsageError, match=r"env\.py:3: SystemExit: no key"):
        load_environment(tmp_path / "env.py")


def test_a_group_names_the_errors_in_it():
    from hud.errors import located

    assert located(BaseExceptionGroup("several", [Odd("x"), SystemExit(1)])) == (
        "BaseExceptionGroup: Odd: x; SystemExit: 1"
    )


def test_results_are_still_those_of_the_parts():
    assert isinstance(asyncio.run(combine(SubScore(name="a", value=1.0))), EvaluationResult)
