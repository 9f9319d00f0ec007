"""Rollouts to a held-out score on the demo's incidents: `curriculum = "signal"` against uniform draws: a table of docs/gains.md.

    python benchmarks/curriculum.py [--folder FOLDER]       less than an hour on two cores; goes on where it stopped

One warmed-up policy, made as the demo makes it, is forked for every seed and curriculum. Training ends at the first held-out
score of the last of `TARGETS` or more; rollouts of held-out scores are not counted. Incidents carry columns that say their cause
and how many calls lie between symptom and cause. Writes curriculum.json beside this file, and its table into the page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "triage"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))

import demo
import world
from records import circumstances
from sizes import SMALLEST, size

from demo_driver import Progress
from gain_tables import PAGE, curricula
from hud import Taskset
from hud.client import connect
from hud.eval import StopSignal
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.monitoring.guard import guard_record
from hud.train.monitoring.progress import Reporter, Score
from page_tables import write_table

RECORD = Path(__file__).with_suffix(".json")
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


class UntilTarget(Reporter):
    """Asks a training run to stop at the last target."""

    def __init__(self) -> None:
        self.stop = StopSignal()

    def scored(self, score: Score) -> None:
        if score.mean >= TARGETS[-1]:
            self.stop.request()


async def played(curriculum: str, seed: int, tasks: Taskset, held_out: Taskset) -> dict[str, Any]:
    """Train a fork of the warmed-up policy to the last target, and return what it took to each."""
    name = f"{curriculum}-{seed}"
    client = connect()
    if all(one["model_name"] != name for one in (await client.get("/v2/models"))["items"]):
        await client.post("/v2/models/fork", {"source_model_id": demo.TEACHER, "name": name})
    until = UntilTarget()
    settings = {**demo.GRPO, "model": name, "steps": STEPS, "seed": seed, "eval_every": EVERY}
    config = TrainConfig(**settings, curriculum=curriculum)
    report = await train(config, tasks=tasks, held_out=held_out, reporter=until, stop=until.stop)
    run = await client.get(f"/v2/training-runs/{report.run_id}")
    groups = [int(row["metrics"]["groups_drawn:sum"]) for row in report.history]
    empty = sum(row["metrics"]["groups_without_spread:sum"] for row in report.history)
    reached = {
        target: next((one.step for one in report.scores if one.mean >= target), len(groups))
        for target in TARGETS
    }
    return {
        "curriculum": curriculum,
        "seed": seed,
        "rollouts": {
            str(target): sum(groups[:steps]) * config.group for target, steps in reached.items()
        },
        "without_signal": round(empty / sum(groups), 4) if groups else 0.0,
        "alarms": [one.name for one in guard_record(run["state"]).alarms if one.guarded],
        "held_out": [[score.step, round(score.mean, 4)] for score in report.scores],
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
    runs = []
    for seed, curriculum in product(SEEDS, CURRICULA):
        done = folder / f"{curriculum}-{seed}.json"
        if not done.exists():
            run = await played(curriculum, seed, tasks, held_out)
            done.write_text(json.dumps(run) + "\n")
        runs.append(json.loads(done.read_text()))
        print(json.dumps(runs[-1]), flush=True)
    return {**circumstances(), "at": datetime.now(UTC).isoformat(timespec="seconds"), "runs": runs}


def main() -> None:
    """Read the command line, measure, record, and print the table."""
    parser = argparse.ArgumentParser(description="Rollouts to a held-out score, by curriculum.")
    parser.add_argument("--folder", type=Path, default=Path(".curriculum"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["HUD_HOME"] = str((folder / "home").resolve())
    os.environ.pop("HUD_API_URL", None)
    record = asyncio.run(measure(folder))
    print(curricula(record))
    if not SMALLEST:
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        write_table(PAGE, curricula(record))


if __name__ == "__main__":
    main()
