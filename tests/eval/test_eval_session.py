"""The older form: `async with hud.eval(task) as ctx`."""

from __future__ import annotations

import pytest

import hud
import hud.eval
from hud.agents import ScriptedAgent
from hud.environment import Environment
from hud.errors import EnvironmentFault
from hud.eval import NullRecorder

env = Environment("letters")


@env.template()
async def count(word: str = "berry", broken: bool = False):
    """Count letters."""
    if broken:
        raise ValueError("no")
    answer = yield f"How many r in {word}?"
    yield float(answer == str(word.count("r")))


def options(**more):
    return {"runtime": lambda task: task.environment.run(), "recorder": NullRecorder(), **more}


async def test_the_reward_is_known_as_soon_as_the_agent_has_run():
    async with hud.eval(count(), **options()) as ctx:
        result = await ScriptedAgent(lambda run: "2").run(ctx)
        assert result.reward == 1.0
        assert result.content == "2"
    assert ctx.reward == 1.0
    assert [step.source for step in ctx.trace.steps] == ["task", "user", "task"]
    assert ctx.ended_at is not None


async def test_code_that_plays_by_hand_is_graded_at_the_end():
    async with hud.eval(count(), **options()) as ctx:
        assert ctx.prompt_text == "How many r in berry?"
        await ctx.submit("2")
    assert ctx.reward == 1.0


async def test_an_exception_of_the_body_passes_on_and_fails_the_run():
    with pytest.raises(KeyError):
        async with hud.eval(count(), **options()) as ctx:
            raise KeyError("oops")
    assert (ctx.failure_kind, ctx.reward) == ("agent", 0.0)


async def test_an_agent_that_raises_leaves_its_error_in_the_result():
    def script(run):
        raise ValueError("lost")

    async with hud.eval(count(), **options()) as ctx:
        result = await ScriptedAgent(script).run(ctx)
    assert result.reward == 0.0
    assert "lost" in result.error


async def test_an_environment_that_does_not_come_up_is_raised():
    with pytest.raises(EnvironmentFault):
        async with hud.eval(count(broken=True), **options()):
            raise AssertionError


def test_the_module_is_still_a_module():
    from hud.eval import Job, Taskset, rollout

    assert callable(rollout)
    assert hud.eval.Job is Job
    assert hud.eval.Taskset is Taskset
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = hud.eval.Nothing


async def test_attempts_at_one_task_in_one_job_are_a_group():
    """So that training compares them, as it does the runs of `Taskset.run(group=)`."""
    job = await hud.Job.start("by hand", recorder=NullRecorder())
    for task in (count(word="berry"), count(word="rare"), count(word="berry")):
        async with hud.eval(task, **options(job=job)) as ctx:
            await ctx.submit("2")
    first, other, again = job.runs
    assert first.group_id == again.group_id != other.group_id
    assert [run.attempt for run in job.runs] == [0, 0, 1]
