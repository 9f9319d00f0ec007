"""The triage environment is solvable, worth nothing unsolved, and keeps its held-out incidents apart."""

import sys
from pathlib import Path

import pytest

from hud.agents import ScriptedAgent
from hud.eval import LocalRuntime, NullRecorder, Taskset

TRIAGE = Path(__file__).parents[2] / "examples" / "triage"
sys.path.insert(0, str(TRIAGE))

import scripted  # noqa: E402
import team_scripted  # noqa: E402
import world  # noqa: E402


@pytest.fixture(scope="module")
def train():
    return Taskset.from_file(TRIAGE / "tasks.py")


@pytest.fixture(scope="module")
def held_out():
    return Taskset.from_file(TRIAGE / "held_out.py")


async def play(tasks, agent, **options):
    return await tasks.run(agent, recorder=NullRecorder(), runtime=LocalRuntime(), **options)


def some(tasks, count):
    return Taskset("some", list(tasks)[:count])


def test_there_are_enough_incidents_of_every_cause(train, held_out):
    assert len(train) >= 400
    assert len(held_out) >= 100
    for tasks, apart in ((train, False), (held_out, True)):
        causes = [world.incident(task.args["seed"], apart).cause for task in tasks]
        assert {causes.count(cause) for cause in world.CAUSES} == {len(tasks) // 7}


@pytest.mark.slow
async def test_the_oracle_solves_every_incident(train, held_out):
    for tasks in (train, held_out):
        job = await play(tasks, scripted.agent)
        assert {run.reward for run in job.runs} == {1.0}


async def test_doing_nothing_is_worth_nothing(held_out):
    job = await play(held_out, ScriptedAgent(lambda run: ""))
    assert {run.reward for run in job.runs} == {0.0}


@pytest.mark.slow
async def test_naming_the_service_where_it_hurts_is_worth_nothing(train):
    def symptom(run):
        case = world.incident(run.task.args["seed"])
        return scripted.answer(case.symptom, case.error_class, case.cause)

    job = await play(some(train, 70), ScriptedAgent(symptom))
    assert {run.reward for run in job.runs} == {0.0}


async def test_waste_costs_and_what_is_half_right_counts_half(train):
    def with_answer(change):
        def play_it(messages, tools, trace):
            del messages, tools, trace
            return change

        return play_it

    case = world.incident(0)
    task = Taskset("one", [train[0]])
    right = scripted.answer(case.culprit, case.error_class, case.cause)
    wrong_cause = scripted.answer(case.culprit, case.error_class, "nothing")
    assert (await play(task, ScriptedAgent(with_answer(right)))).reward == 1.0
    assert (await play(task, ScriptedAgent(with_answer(wrong_cause)))).reward == 0.5

    async def wasteful(run):
        for _ in range(case.par + 4):
            await run.call_tool(scripted.ToolCall(id="x", name="list_flags", arguments={}))
        return right

    assert (await play(task, ScriptedAgent(wasteful))).reward == pytest.approx(0.9)


@pytest.mark.slow
async def test_the_apprentice_is_mediocre(train):
    job = await play(some(train, 700), scripted.apprentice())
    assert 0.25 < job.reward < 0.45


def test_held_out_incidents_share_no_service_and_no_wording(train, held_out):
    cases = [world.incident(task.args["seed"]) for task in train]
    apart = [world.incident(task.args["seed"], True) for task in held_out]
    assert not {name for case in cases for name in case.services} & {
        name for case in apart for name in case.services
    }
    assert not set(world.wordings(False)) & set(world.wordings(True))
    pages = {case.page.replace(case.symptom.split("-")[0], "") for case in cases}
    assert not pages & {case.page.replace(case.symptom.split("-")[0], "") for case in apart}


def test_an_incident_is_the_same_each_time_it_is_built():
    case = world.incident(5)
    assert case == world.incident(5)
    first, second = world.build(case), world.build(case)
    assert list(first.iterdump()) == list(second.iterdump())


def test_the_symptom_is_never_at_the_service_at_fault():
    for seed in range(300):
        case = world.incident(seed)
        assert case.symptom != case.culprit
        assert case.bystander not in case.chain


async def test_tools_answer_about_services_that_do_not_exist(train):
    heard = {}

    async def ask(run):
        for tool in run.tools:
            call = scripted.ToolCall(id="x", name=tool.name, arguments={"service": "no-such"})
            heard[tool.name] = await run.call_tool(call)
        return ""

    await play(Taskset("one", [train[0]]), ScriptedAgent(ask))
    assert len(heard) == 7
    assert not any(result.is_error for result in heard.values())
    assert heard["get_stack_trace"].text == "no errors"


@pytest.mark.slow
async def test_a_team_of_experts_solves_every_incident_and_apprentices_some():
    tasks = some(Taskset.from_file(TRIAGE / "team_tasks.py"), 70)
    assert {run.reward for run in (await play(tasks, team_scripted.agent)).runs} == {1.0}
    assert {run.reward for run in (await play(tasks, ScriptedAgent(lambda run: ""))).runs} == {0.0}
    team = team_scripted.apprentices()
    beginner = team["lead"]
    assert 0.6 < (await play(tasks, beginner)).reward < 0.9
    beginner.subagents = {"ask_tracer": team["tracer"], "ask_prober": team["prober"]}
    assert 0.05 < (await play(tasks, beginner)).reward < 0.5
