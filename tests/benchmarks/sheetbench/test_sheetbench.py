"""`sheetbench-50`: its tasks, splits and seeds; the solver, nothing and exploits on samples, and on all fifty."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import pytest
from tests.benchmarks.played import NOTHING, rewards
from tests.benchmarks.sheetbench.offices import fifty, with_office

from hud.audit import EXPLOITS, Audit
from hud.benchmarks.benchmark import SPLITS
from hud_benchmarks.sheetbench.kinds import CATEGORIES, KINDS, exercise
from hud_benchmarks.sheetbench.workbook.state import state

SEED = 1_000_000
SAMPLE = [f"{kind}-{SEED}" for kind in ("ledgers", "errors", "charts")]


def test_fifty_tasks_are_held_out_in_three_categories_and_three_bands():
    tasks = list(fifty().tasks())
    of = {
        name: Counter(task.columns[name] for task in tasks) for name in ("category", "kind", "band")
    }
    assert of["category"] == {"preparation": 29, "derivation": 16, "modelling": 5}
    assert set(of["kind"]) == set(KINDS)
    assert max(of["kind"].values()) <= 3
    assert set(of["band"]) == {"easy", "medium", "hard"}
    assert min(of["band"].values()) >= 10


def test_every_task_has_a_slug_and_a_seed_of_its_own_in_one_split():
    found = {split: [task.slug for task in fifty().tasks(split)] for split in SPLITS}
    assert {split: len(slugs) for split, slugs in found.items()} == fifty().sizes
    assert max(Counter(slug for slugs in found.values() for slug in slugs).values()) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_workbook_is_drawn_from_its_seed(kind):
    one, again, other = (exercise(kind, seed) for seed in (SEED, SEED, SEED + 1))
    assert state(one.workbook) == state(again.workbook) != state(other.workbook)
    assert one.request == again.request
    assert (one.parts, one.settings, one.what_ifs) == (again.parts, again.settings, again.what_ifs)
    assert 2 <= len(one.names()) <= 14


@pytest.mark.slow
@with_office
async def test_the_solver_does_a_sample_and_doing_nothing_scores_0():
    tasks = fifty().tasks().filter(SAMPLE)
    assert await rewards(tasks, fifty().oracle()) == dict.fromkeys(SAMPLE, 1.0)
    assert await rewards(tasks, NOTHING) == dict.fromkeys(SAMPLE, 0.0)


@with_office
@pytest.mark.slow
async def test_the_solver_does_all_fifty_and_doing_nothing_scores_0():
    tasks = fifty().tasks()
    slugs = [task.slug for task in tasks]
    assert await rewards(tasks, fifty().oracle()) == dict.fromkeys(slugs, 1.0)
    assert await rewards(tasks, NOTHING) == dict.fromkeys(slugs, 0.0)


@with_office
@pytest.mark.slow
async def test_the_solver_does_tasks_of_the_training_split():
    slugs = [f"{kind.name}-{seed}" for kinds in CATEGORIES.values() for kind in kinds for seed in (0, 7)]  # fmt: skip
    tasks = fifty().tasks("train").filter(slugs)
    assert await rewards(tasks, fifty().oracle()) == dict.fromkeys(slugs, 1.0)


async def exploited(tasks, exploits=EXPLOITS):
    audit = Audit(tasks, exploits=exploits)
    await audit.play(fifty().oracle())
    report = audit.report()
    assert report.unmeasured == {}
    assert {task.solved for task in report.tasks} == {1.0}
    return [task.highest for task in report.tasks]


@pytest.mark.slow
@with_office
async def test_exploits_earn_next_to_nothing_on_a_sample():
    some = [one for one in EXPLOITS if one.name in ("calls", "values")]
    assert await exploited(fifty().tasks().filter(SAMPLE[:1]), some) == [0.0]


@with_office
@pytest.mark.slow
@pytest.mark.timeout(1200)
async def test_exploits_earn_next_to_nothing_on_all_fifty():
    assert fmean(await exploited(fifty().tasks())) <= 0.05
