"""A grade has a reward for each turn, and tools and hooks record some while the turn is played."""

import pytest

from hud import Environment
from hud.agents import ScriptedAgent
from hud.errors import UsageError
from hud.eval import LocalRuntime, Taskset
from hud.graders import EvaluationResult
from hud.learning.turn_rewards import turn_rewards_of
from hud.trace import AgentStep, ToolCall

env = Environment("doors")


@env.tool
async def open_door(number: int) -> str:
    """Open a door."""
    env.reward_turn(0.25)
    env.reward_turn(0.25 * number)
    return "open"


@env.tool
async def wait() -> str:
    """Wait."""
    return "nothing"


@env.template()
async def doors(graded: list[float] | None = None):
    yield "open the doors"
    yield EvaluationResult(reward=0.5, turn_rewards=graded)


async def play(run):
    for name, arguments in (
        ("open_door", {"number": 1}),
        ("wait", {}),
        ("open_door", {"number": 3}),
    ):
        run.record(AgentStep(content="I go on"))
        await run.call_tool(ToolCall(id=name, name=name, arguments=arguments))
    return "done"


async def played(task, agent=play, runtime=None):
    job = await Taskset("doors", [task]).run(
        ScriptedAgent(agent), runtime=runtime or LocalRuntime()
    )
    (run,) = job.runs
    return run


@pytest.mark.parametrize(
    ("graded", "expected"),
    [
        (None, [0.5, 0.0, 1.0]),
        ([1.0, -1.0, 0.0], [1.5, -1.0, 1.0]),
    ],
)
async def test_recorded_and_graded_rewards_of_a_turn_add_up(graded, expected):
    run = await played(doors(graded=graded))
    assert (run.error, run.reward) == (None, 0.5)
    assert run.grade.turn_rewards == expected
    assert run.evaluation["turn_rewards"] == expected
    assert turn_rewards_of(run.trace) == expected


@pytest.mark.slow
async def test_an_environment_in_another_process_records_the_same():
    run = await played(doors(), runtime=LocalRuntime(__file__))
    assert run.grade.turn_rewards == [0.5, 0.0, 1.0]


async def test_another_number_of_rewards_than_turns_is_a_failed_grade():
    run = await played(doors(graded=[1.0, 0.0]))
    assert (run.failure_kind, run.reward, run.grade.turn_rewards) == ("grader", None, None)
    assert "graded with 2 turn_rewards for a run of 3 turns; give one number for each" in run.error


@pytest.mark.parametrize(
    "graded", ["[1, 2, 3]", [1.0, float("nan"), 0.0], [None, 1.0, 2.0], [10**400, 1, 2]]
)
async def test_rewards_of_turns_that_are_no_numbers_are_a_failed_grade(graded):
    odd = Environment("odd")

    @odd.template()
    async def doors():
        yield "go"
        yield {"score": 1.0, "turn_rewards": graded}

    async def agent(run):
        for _ in range(3):
            run.record(AgentStep(content="I go on"))

    run = await played(doors(), agent)
    assert run.failure_kind == "grader"
    assert "must be a list of finite numbers" in run.error


async def test_an_agent_that_records_no_turns_has_no_rewards_of_turns():
    async def agent(run):
        await run.call_tool(ToolCall(id="1", name="open_door", arguments={"number": 1}))

    run = await played(doors(graded=[1.0]), agent)
    assert (run.error, run.grade.turn_rewards) == (None, None)
    assert "turn_rewards" not in run.evaluation


async def test_a_hook_records_the_reward_of_the_turn_that_it_observes():
    watched = Environment("watched")

    @watched.tool
    async def press() -> str:
        """Press."""
        return "pressed"

    @watched.observe
    async def state():
        watched.reward_turn(1.0)
        return {"pressed": True}

    @watched.template()
    async def presses():
        yield "press"
        yield 1.0

    async def agent(run):
        for _ in range(2):
            run.record(AgentStep(content="I press"))
            await run.call_tool(ToolCall(id="1", name="press", arguments={}))

    run = await played(presses(), agent)
    # The observation after setup belongs to the first turn.
    assert run.grade.turn_rewards == [2.0, 1.0]


async def test_only_a_turn_can_be_rewarded_and_only_by_a_number():
    with pytest.raises(UsageError, match="has no turn to reward here"):
        env.reward_turn(1.0)
    early = Environment("early")

    @early.template()
    async def starts():
        early.reward_turn(1.0)
        yield "go"
        yield 1.0

    run = await played(starts())
    assert run.failure_kind == "environment"
    assert "call reward_turn in a tool or an observe hook" in run.error
    odd = Environment("odd")

    @odd.tool
    async def open_door(number: int) -> str:
        """Open."""
        odd.reward_turn(float("nan"))
        return "open"

    @odd.template()
    async def doors():
        yield "go"
        yield 1.0

    async def agent(run):
        run.record(AgentStep(content="I go"))
        result = await run.call_tool(ToolCall(id="1", name="open_door", arguments={"number": 1}))
        assert "takes a finite number" in result.text
        return "done"

    assert (await played(doors(), agent)).error is None
