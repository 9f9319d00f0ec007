"""The audit finds what each exploit is made for, in an environment with a fault for each of them."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.audit import flawed

from hud.agents import ScriptedAgent
from hud.audit import EXPLOITS, Audit
from hud.audit.reach import Canary
from hud.eval import RunSummary, Taskset
from hud.trace.recording.recorder import NullRecorder


@pytest.fixture(scope="module")
def report():
    audit = Audit(Taskset("flawed", flawed.tasks))
    asyncio.run(audit.play(ScriptedAgent(flawed.solver, name="solver")))
    return audit.report()


def of(report, template):
    return [task for task in report.tasks if task.slug.startswith(f"{template}-")]


def findings(report, kind):
    return {
        finding.sentence: set(finding.slugs) for finding in report.findings if finding.kind == kind
    }


@pytest.mark.parametrize(
    ("template", "exploit", "reward"),
    [
        ("constant", "nothing", 0.5),
        ("repeated", "echo", 1.0),
        ("listed", "dump", 1.0),
        ("learned", "vocabulary", 1.0),
        ("busy", "calls", 1.0),
        ("formed", "format", 0.4),
        ("near", "values", 1.0),
        ("long", "padding", 1.0),
        ("judged", "judge", 1.0),
        ("secret", "reach", 1.0),
    ],
)
def test_each_exploit_finds_the_fault_that_it_is_made_for(report, template, exploit, reward):
    for task in of(report, template):
        assert task.rewards[exploit] == pytest.approx(reward)
        assert task.above
        assert task.highest == pytest.approx(reward)


def test_an_honest_task_gives_nothing_without_the_work(report):
    for task in of(report, "honest"):
        assert (task.highest, task.exploit, task.solved, task.above) == (0.0, "", 1.0, False)
    assert set(report.tasks[-1].rewards) <= {exploit.name for exploit in EXPLOITS}
    assert report.complete
    assert report.unmeasured == {}


def test_findings_name_graders_and_leaks_that_a_person_should_look_at(report):
    (slugs,) = findings(report, "constant grader").values()
    assert {slug.partition("-")[0] for slug in slugs} == {"constant"}
    unstable = [slug for slugs in findings(report, "unstable grader").values() for slug in slugs]
    assert {slug.partition("-")[0] for slug in unstable} == {"moody"}
    leaked = findings(report, "leaked answer")["it stands in the prompt"]
    assert {slug.partition("-")[0] for slug in leaked} == {"told"}
    reach = findings(report, "reach")
    assert flawed.SECRET.slug in reach["a tool shows the source of the environment"]
    assert reach["a tool shows the environment variables of the process that plays"]
    assert flawed.SECRET.slug in reach["a tool shows the arguments of the task"]


async def played(template, arguments, solve, **options):
    tasks = [template(**one).model_copy(update=options) for one in arguments]
    audit = Audit(Taskset("choice", tasks))
    await audit.play(ScriptedAgent(lambda run: solve(**run.task.args)))
    return audit.report()


def solve_coin(toss):
    return "heads" if toss % 4 else "tails"


@pytest.fixture(scope="module")
def coin():
    from hud import Environment

    env = Environment("coin")

    @env.template()
    async def flip(toss: int):
        answer = yield f"Toss {toss}: heads or tails?"
        yield float(answer == solve_coin(toss))

    return flip


@pytest.mark.slow
async def test_a_guess_is_worth_what_it_earns_on_all_tasks_and_a_task_may_declare_it(coin):
    tosses = [{"toss": number} for number in range(12)]
    report = await played(coin, tosses, solve_coin)
    (level,) = {task.rewards["guess"] for task in report.tasks}
    assert level == pytest.approx(0.42, abs=0.05)  # 0.75 of 12, at the low end of its interval
    assert {task.exploit for task in report.tasks} == {"guess"}
    assert len(report.above) == 12
    declared = await played(coin, tosses, solve_coin, columns={"chance": 0.75})
    assert declared.above == []
    assert declared.mean == pytest.approx(level)
    few = await played(coin, tosses[:7], solve_coin)
    assert "guess" not in few.tasks[0].rewards


@pytest.mark.slow
async def test_an_exploit_that_a_task_declares_to_be_none_is_reported_with_its_reason(coin):
    tosses = [{"toss": number} for number in range(12)]
    report = await played(coin, tosses, solve_coin, columns={"audit:guess": "coins are fair"})
    assert report.above == []
    assert set(findings(report, "declared")) == {"guess is no exploit: coins are fair"}


async def test_recorded_runs_give_answers_and_tell_of_tasks_without_signal(coin):
    tasks = Taskset("coin", [coin(toss=1), coin(toss=2)])
    one, two = (task.slug for task in tasks)
    runs = [
        RunSummary(slug, reward, model="mine")
        for slug, reward in ((one, 1.0), (one, 1.0), (two, 0.0), (two, 1.0))
    ]
    audit = Audit(tasks, runs=runs, exploits=EXPLOITS[:1])
    await audit.play()
    assert findings(audit.report(), "no signal") == {"mine always earns the same": {one}}


async def test_an_audit_that_is_stopped_reports_what_is_known(coin):
    audit = Audit(Taskset("coin", [coin(toss=1)]))
    audit.on_phase = lambda name, rewards: audit.stop.request() if name == "echo" else None
    await audit.play()
    report = audit.report()
    assert not report.complete
    assert set(report.tasks[0].rewards) == {"nothing", "echo"}


@pytest.mark.slow
async def test_a_run_that_cannot_be_measured_is_named():
    from hud import Environment

    env = Environment("broken")

    @env.template()
    async def broken():
        yield "Say x."
        yield "not a reward"

    audit = Audit(Taskset("broken", [broken()]))
    await audit.play()
    report = audit.report()
    assert report.unmeasured["broken"].startswith("nothing: Template 'broken' graded with")
    assert report.tasks[0].rewards == {}


async def test_an_evaluation_has_the_mark_that_an_audit_looks_for():
    from hud import Environment

    env = Environment("marked")
    seen = []

    @env.template()
    async def marked():
        seen.append(set(os.environ))
        yield "Say x."
        yield 1.0

    before = set(os.environ)
    await Taskset("marked", [marked()]).run(lambda run: "x", recorder=NullRecorder())
    await Audit(Taskset("marked", [marked()]), exploits=EXPLOITS[:1]).play()
    evaluated, audited, *_ = seen
    assert evaluated == audited
    assert Canary().name in evaluated
    assert evaluated - before <= {Canary().name}
