"""Baselines: what people and reference solvers did, in files, and jobs scored against it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from tests.benchmarks.played import installed

from hud.agents import HumanAgent, ScriptedAgent
from hud.benchmarks import Benchmark, Package, Reference, Split, benchmarks
from hud.benchmarks.baseline import NO_PEOPLE, Baseline, baseline_score
from hud.benchmarks.baseline.baseline_file import (
    BaselineFile,
    PersonResult,
    baseline_file,
    change,
    own_path,
)
from hud.benchmarks.baseline.recording import measure_reference, open_tasks, record_person
from hud.benchmarks.registry import shipped_baseline
from hud.environment import Environment
from hud.errors import StoreError
from hud.eval import NullRecorder, RunSummary

NAME = "reasoning-gym/chain_sum"
SLUG = "chain_sum-held-out-0"
env = Environment("percent")


@env.template()
async def percent(target: int):
    """Say a number near the target."""
    answer = yield f"Say {target}."
    yield max(0.0, 1 - abs(target - int(answer or 0)) / target)


def _tasks(split: Split):
    tasks = [percent(target=target) for target in (10, 20, 40)]
    for task in tasks:
        task.slug = f"{split}-{task.args['target']}"
    return tasks


MADE = Benchmark(
    name="percent",
    summary="",
    package=Package("pytest", pytest.__version__, "MIT"),
    sizes={"train": 3, "held-out": 3},
    make_tasks=_tasks,
    make_oracle=lambda: ScriptedAgent(lambda run: str(run.task.args["target"]), name="expert"),
    novices={"tens": Reference(lambda: ScriptedAgent(lambda run: "10", name="tens"), 0.25)},
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("hud.eval.job.default_recorder", NullRecorder)


def person(initials, reward, *, task=SLUG, version="0.1.25", trace="", seconds=10.0):
    return PersonResult(
        task=task,
        person=initials,
        reward=reward,
        seconds=seconds,
        collected="terminal",
        instructions="Do it.",
        at=datetime(2026, 11, 24, tzinfo=UTC),
        version=version,
        trace_id=trace or f"{initials}-{task}-{reward}",
    )


def add(*results, to=NAME):
    change(to, lambda file: file.with_people(*results))


def scored(*rewards, slug=SLUG):
    return baseline_score(NAME, [RunSummary(slug, reward) for reward in rewards])


def test_without_people_a_score_says_that_it_stands_on_references():
    found = scored(1.0, 0.0)
    assert (found.mean, found.label) == (0.5, NO_PEOPLE)
    assert NO_PEOPLE == "reference-anchored, no human baseline yet"
    add(person("a", 1.0), person("b", 0.0))
    assert scored(1.0).label == NO_PEOPLE


def test_from_three_people_on_a_score_is_a_percentile_of_theirs():
    add(person("a", 0.25), person("b", 0.5), person("c", 0.5))
    # Half of the weight is the mid-rank among three, half the references.
    found = scored(0.5)
    assert found.mean == pytest.approx((2 / 3 + 0.5) / 2)
    assert (scored(0.0).mean, scored(1.0).mean) == (0.0, 1.0)
    assert found.label == "percentile of people"
    other = [RunSummary(SLUG, 1.0), RunSummary("chain_sum-held-out-1", 1.0)]
    assert baseline_score(NAME, other).label.startswith("percentile of people on 1 of 2 tasks")


def test_a_person_counts_once_for_a_task_and_only_at_the_version_of_the_tasks():
    add(person("a", 0.0), person("a", 1.0), person("b", 1.0), person("c", 1.0, version="0.1.19"))
    task = Baseline.of(next(one for one in benchmarks() if one.name == NAME)).task(SLUG)
    assert [(one.person, one.reward) for one in task.people] == [("a", 0.0), ("b", 1.0)]
    assert (task.human, task.median_reward, task.median_seconds) == (False, 0.5, 10.0)


def test_jobs_of_no_benchmark_and_without_rewards_have_no_score():
    assert baseline_score(None, [RunSummary("a", 1.0)]) is None
    assert baseline_score("no-such", [RunSummary("a", 1.0)]) is None
    assert scored(None) is None


def test_results_that_arrive_together_are_all_kept():
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: add(person(f"p{n}", 1.0)), range(24)))
    assert len(baseline_file(NAME).people) == 24
    add(person("p0", 1.0))
    assert len(baseline_file(NAME).people) == 24, "a run counts once"


def test_a_broken_file_is_named_and_left_alone():
    add(person("a", 1.0))
    path = own_path(NAME)
    text = path.read_text().replace('"reward": 1.0', '"reward": "much"')
    path.write_text(text)
    with pytest.raises(StoreError, match=r"reasoning-gym\.json cannot be read: people\.0\.reward"):
        baseline_file(NAME)
    with pytest.raises(StoreError):
        add(person("b", 1.0))
    assert path.read_text() == text


def test_shipped_files_are_of_benchmarks_at_their_versions_and_invent_no_people():
    shipped = 0
    for benchmark in benchmarks():
        if path := shipped_baseline(benchmark.name):
            file = BaselineFile.model_validate_json(path.read_bytes())
            versions = {result.version for result in file.references.values()}
            assert versions == {benchmark.package.version}
            assert file.people == ()
            shipped += 1
    assert shipped > 4


async def test_reference_solvers_are_measured_and_anchor_the_scale():
    tasks = MADE.tasks()
    for name in MADE.references:
        await measure_reference(MADE, tasks, name)
    baseline = Baseline.of(MADE)
    assert baseline.references_on("held-out-20") == {"nothing": 0.0, "tens": 0.5, "expert": 1.0}
    assert baseline.task("held-out-20").score(0.5) == 0.25
    assert baseline.task("held-out-40").score(0.25) == 0.25
    assert baseline.task("held-out-10").score(0.25) == 0.25, (
        "the novice solves it: the reward alone"
    )
    await measure_reference(MADE, tasks.filter(["held-out-20"]), "tens")
    assert baseline_file("percent").references["tens"].on("held-out-40") == 0.25
    assert baseline.references_on("train-20") == {}, "not measured, so nothing is claimed"


async def test_a_person_does_tasks_at_a_terminal_and_those_that_few_did_come_first():
    tasks = MADE.tasks()
    version = MADE.package.version
    add(person("b", 1.0, task="held-out-10", version=version), to="percent")
    asked = open_tasks(MADE, tasks, "a")
    assert [task.slug for task in asked] == ["held-out-20", "held-out-40", "held-out-10"]
    lines = iter(["answer 20", "tools", "quit"])

    def ask(prompt):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    seen = []
    agent = HumanAgent(ask=ask, say=lambda text: None)
    job = await record_person(MADE, asked, agent, "a", seen.append)
    assert [(one.task, one.reward) for one in seen] == [("held-out-20", 1.0), ("held-out-40", 0.0)]
    assert all(0 <= one.seconds < 10 for one in seen)
    assert job.interrupted, "where the input ends, nothing was measured"
    kept = baseline_file("percent").people
    assert [one.trace_id for one in kept[1:]] == [run.trace_id for run in job.runs[:2]]
    assert [task.slug for task in open_tasks(MADE, tasks, "a")] == ["held-out-10"]


async def test_shipped_references_are_what_the_solvers_get():
    found = installed("bfcl-multi-turn")
    tasks = found.tasks()
    before = Baseline.of(found)
    some = tasks.filter([tasks[at].slug for at in (0, 5)])
    for reference in found.references:
        job = await measure_reference(found, some, reference)
        for run in job.runs:
            assert before.references_on(run.slug)[reference] == run.reward


def test_a_lock_that_is_a_folder_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    own_path("made").with_suffix(".lock").mkdir(parents=True)
    with pytest.raises(StoreError, match=r"The lock .*made\.lock cannot be opened"):
        change("made/one", lambda file: file)
