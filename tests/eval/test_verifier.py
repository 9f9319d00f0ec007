"""A task's verifier has the last word on its grade."""

from __future__ import annotations

import pytest

from hud.environment import Environment
from hud.eval.rollouts import rollout
from hud.trace.recording.recorder import NullRecorder

env = Environment("maze")
other = Environment("referee")


@env.initialize
def begin():
    env.state.left = False


@env.tool
def leave():
    """Leave the maze."""
    env.state.left = True


@env.template()
async def walk():
    answer = yield "Leave the maze."
    yield {"score": 1.0, "info": {"said": answer}}


@env.template(returns=dict)
async def really(strict: bool = True):
    graded = yield "not shown to anybody"
    assert graded.content["info"] == {"said": "out"}
    yield graded.content["score"] * float(env.state.left)


@env.template()
async def broken():
    yield ""
    raise ValueError("no referee today")


@other.template(returns=dict)
async def halve():
    graded = yield ""
    yield {"score": graded.content["score"] / 2, "done": True}


async def stays(run):
    run.trace.content = "out"


async def leaves(run):
    from hud.trace import ToolCall

    await run.call_tool(ToolCall(id="1", name="leave"))
    run.trace.content = "out"


def verified(verifier):
    task = walk()
    task.verifier = verifier
    return task


async def play(task, agent):
    return await rollout(task, agent, recorder=NullRecorder())


@pytest.mark.parametrize(("agent", "reward"), [(stays, 0.0), (leaves, 1.0)])
async def test_it_sees_the_world_as_the_agent_left_it_and_the_grade(agent, reward):
    run = await play(verified(really(strict=True)), agent)
    assert run.reward == reward, run.error
    calls = [step.task_call.name for step in run.trace.steps if step.task_call is not None]
    assert calls == ["walk", "walk", "really"]
    assert run.trace.steps[-1].task_call.result["score"] == reward


async def test_it_may_live_in_an_environment_of_its_own():
    assert (await play(verified(halve()), stays)).reward == 0.5


async def test_a_verifier_that_breaks_leaves_the_run_unmeasured():
    run = await play(verified(broken()), stays)
    assert (run.failure_kind, run.reward) == ("grader", None)
    assert "no referee today" in run.error
