"""Rollouts to a held-out score on the demo's incidents: `curriculum = "signal"` against uniform draws: a table of docs/gains.md.

    python benchmarks/curriculum.py [--folder FOLDER]       less than an hour on two cores; goes on where it stopped

One warmed-up policy, made as the demo makes it, is forked for every seed and curriculum. Training ends at the first held-out
score of the last of `TARGETS` or more; rollouts of held-out scores are not counted. Incidents carry columns that say their cause
and how many calls lie between symptom and cause. Writes curriculum.json beside this file, and its table into the page.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "triage"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))

import demo
import world
from records import circumstances
from sizes import size

from demo_driver import Progress
from gain_tables import curricula
from hud import Taskset
from hud.client import connect
from hud.train.config import TrainConfig
from hud.train.monitoring.guard import guard_record
from rollouts_to_score import (
    groups_of,
    held_out_scores,
    recorded,
    run_benchmark,
    steps_to,
    train_fork,
)

SEEDS = range(size(5, 1))
CURRICULA = ("uniform", "signal")
TARGETS = (0.6, 0.7, 0.75)
IMITATED_RUNS = 1400
"""Of the apprentice, one of each training incident: a third of the demo's."""
HELD_OUT = size(70, 2)
"""Incidents of a held-out score."""
STEPS = size(60, 1)
"""A run that has not reached a target by then counts with all its rollouts."""
EVERY = 3
"""Steps between held-out scores."""


async def played(curriculum: str, seed: int, tasks: Taskset, held_out: Taskset) -> dict[str, Any]:
    """Train a fork of the warmed-up policy to the last target, and return what it took to each."""
    settings = {**demo.GRPO, "steps": STEPS, "seed": seed, "eval_every": EVERY}
    config = TrainConfig(model=f"{curriculum}-{seed}", curriculum=curriculum, **settings)
    report = await train_fork(demo.TEACHER, config, TARGETS[-1], tasks, held_out)
    run = await connect().get(f"/v2/training-runs/{report.run_id}")
    groups = groups_of(report)
    empty = sum(row["metrics"]["groups_without_spread:sum"] for row in report.history)
    return {
        "curriculum": curriculum,
        "seed": seed,
        "rollouts": {
            str(target): sum(groups[: steps_to(report, target)]) * config.group
            for target in TARGETS
        },
        "without_signal": round(empty / sum(groups), 4) if groups else 0.0,
        "alarms": [one.name for one in guard_record(run["state"]).alarms if one.guarded],
        "held_out": held_out_scores(report),
    }


def with_kind(tasks: Taskset) -> Taskset:
    """Return the incidents with columns of what makes them hard."""

    def kind(seed: int) -> dict[str, Any]:
        case = world.incident(seed, False)
        return {"cause": case.cause, "links": len(case.chain)}

    return Taskset(
        tasks.name,
        [task.model_copy(update={"columns": kind(task.args["seed"])}) for task in tasks],
    )


async def measure(folder: Path) -> dict[str, Any]:
    """Return the record of all runs; one that stopped on its way goes on from there."""
    made = demo.Demo(Progress(folder, seed=0, steps=STEPS, shuffle_advantages=False))
    made.imitated_runs = IMITATED_RUNS
    if not (folder / "taught").exists():
        for phase in (made.record_apprentice, made.create, made.teach):
            await phase()
        (folder / "taught").touch()
    tasks, held_out = with_kind(made.tasks), Taskset("held-out", list(made.held_out)[:HELD_OUT])
    runs = [
        await recorded(
            folder / f"{curriculum}-{seed}.json", partial(played, curriculum, seed, tasks, held_out)
        )
        for seed, curriculum in product(SEEDS, CURRICULA)
    ]
    return {**circumstances(), "at": datetime.now(UTC).isoformat(timespec="seconds"), "runs": runs}


if __name__ == "__main__":
    run_benchmark("Rollouts to a held-out score, by curriculum.", __file__, measure, curricula)
