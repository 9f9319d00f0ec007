"""What tasks ask of their runtimes is kept as given, honoured, or refused."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from hud import (
    ComposeProject,
    Environment,
    RuntimeConfig,
    RuntimeGPU,
    RuntimeLimits,
    RuntimeResources,
    RuntimeTPU,
    Task,
)
from hud.errors import UsageError
from hud.eval import ForkRuntime, LocalRuntime, Shared, SubprocessRuntime
from hud.eval.rollouts import rollout
from hud.trace.recording.recorder import NullRecorder

env = Environment("places")


@env.template()
async def where():
    yield "?"
    yield 1.0


def asking(**fields):
    task = where()
    return Task(**{**task.model_dump(), "runtime_config": RuntimeConfig(**fields)}).bind(env)


async def answers(run):
    run.trace.content = "here"


def test_only_what_is_set_is_kept():
    limits = RuntimeLimits(run_timeout_s=5)
    assert asking(limits=limits).runtime_config == {"limits": {"run_timeout_s": 5.0}}
    given = {"image": "x", "limits": {"run_timeout_s": 5}, "later": [1]}
    assert Task(env="e", id="t", runtime_config=given).runtime_config == given


def test_requirements_that_make_no_sense_are_refused():
    for wrong in (
        lambda: RuntimeConfig(image="x", compose=ComposeProject(document={})),
        lambda: RuntimeConfig(disk=1),
        lambda: RuntimeLimits(run_timeout_s=0),
        lambda: RuntimeGPU(count=0),
        lambda: RuntimeTPU(type="v5", topology="wide"),
    ):
        with pytest.raises(ValidationError):
            wrong()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"image": "python:3.12"}, "image"),
        (
            {"resources": RuntimeResources(gpu=RuntimeGPU(count=8), cpu=4)},
            "resources.cpu, resources.gpu",
        ),
    ],
)
@pytest.mark.parametrize("runtime", [LocalRuntime(), ForkRuntime(env), SubprocessRuntime(env)])
async def test_what_a_runtime_cannot_give_is_refused(fields, said, runtime):
    with pytest.raises(UsageError, match=f"asks for {said} in its runtime_config"):
        await rollout(asking(**fields), answers, runtime=runtime, recorder=NullRecorder())


async def test_nonsense_from_a_file_is_refused_and_not_raised_half_way():
    task = where()
    task.runtime_config = {"limits": {"run_timeout_s": "soon"}}
    with pytest.raises(UsageError, match=r"runtime_config\.limits\.run_timeout_s"):
        await rollout(task, answers, recorder=NullRecorder())


async def test_the_tasks_own_limit_holds():
    async def never(run):
        await asyncio.sleep(60)

    task = asking(limits=RuntimeLimits(run_timeout_s=0.1))
    run = await rollout(task, never, recorder=NullRecorder())
    assert (run.trace.stop_reason, run.reward) == ("timeout", 0.0)


SERVED = """
import asyncio, os
from hud import Environment
env = Environment("served")

@env.initialize
def begin():
    env.state.mine = []

@env.tool
async def note(text: str):
    env.state.mine.append(text)
    await asyncio.sleep(0.01)
    return {"pid": os.getpid(), "mine": env.state.mine}

@env.template()
async def write(who: int = 0):
    yield "?"
    yield float(len(env.state.mine) == 1)
"""


@pytest.fixture
def served(tmp_path):
    path = tmp_path / "env.py"
    path.write_text(SERVED)
    return path


async def run_many(runtime, count):
    from hud.trace import ToolCall

    seen, inside, most = [], 0, 0

    async def agent(run):
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        result = await run.call_tool(ToolCall(id="1", name="note", arguments={"text": "x"}))
        seen.append(result.structured_content)
        inside -= 1
        run.trace.content = "done"

    tasks = [Task(env="served", id="write", args={"who": who}) for who in range(count)]
    runs = await asyncio.gather(
        *(rollout(task, agent, runtime=runtime, recorder=NullRecorder()) for task in tasks)
    )
    assert [run.reward for run in runs] == [1.0] * count, runs[0].error
    assert all(each["mine"] == ["x"] for each in seen)
    return {each["pid"] for each in seen}, most


@pytest.mark.slow
async def test_shared_rollouts_live_in_one_process_with_states_of_their_own(served):
    runtime = Shared(SubprocessRuntime(served), width=3)
    async with runtime:
        first, most = await run_many(runtime, 8)
        again, _ = await run_many(runtime, 2)
    assert len(first) == 1
    assert again == first
    assert most <= 3
    fresh, _ = await run_many(runtime, 2)
    assert fresh != first


@pytest.mark.slow
async def test_what_cannot_be_shared_is_refused(served):
    with pytest.raises(UsageError, match="ForkRuntime gives environments that cannot be shared"):
        shared = Shared(ForkRuntime(served), width=2)
        try:
            await run_many(shared, 1)
        finally:
            await shared.aclose()
    with pytest.raises(UsageError, match="width"):
        Shared(ForkRuntime(served), width=0)
