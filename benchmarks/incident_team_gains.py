"""Flat against hierarchical on the incident lab, with a pretrained model: one policy with all 109 tools, or a lead with six specialists.

    python benchmarks/incident_team_gains.py        some hours on two cores; not measured to its end yet
    python benchmarks/incident_team_gains.py --folder .team --sides hierarchical      one side; goes on where it was stopped

1. Incidents to train on, and held-out ones, are those of incident_lab_gains.py.
2. An adapter of SmolLM2-135M-Instruct for each policy imitates the lab's oracle, a specialist on half of the questions that the lead
   asks: its base.
3. GRPO trains each policy: the flat one alone; of the team the specialist, which plays all six areas, then the lead, while the
   specialist is frozen.
4. Bases and trained policies investigate the held-out incidents, `GROUP` times each; the base of the lead asks that of the specialist.

Tokens that GRPO computed a loss for are counted: the sides are compared at about the same number. Writes
incident_team_gains.json beside this file, and its table into docs/incident-lab.md.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "depot"))

import demo
from records import circumstances
from sizes import SMALLEST, size

from gain_tables import LAB_PAGE
from gain_tables import incident_team as table
from gains import Lines, fork, head, rollouts_of, rounded, shown
from hud import Task, Taskset
from hud.eval import Job, Run
from hud.eval.results.paired_differences import Rewards, rewards_by_attempt
from hud.train.config import SubagentConfig, TrainConfig
from hud.train.loop import train
from hud.train.promotion.checkpoint_comparison import play
from hud.train.supervised.supervised_run import warm_up
from hud_benchmarks.incident_lab import players
from incident_lab_gains import GRPO, WARM_UPS, lab_folder, write
from incident_variants import HELD_OUT_PREFIX
from page_tables import write_table

RECORD = Path(__file__).with_suffix(".json")
SIDES = {"hierarchical": ("specialist", "lead"), "flat": ("flat",)}
"""Policies of each side, in the order in which they are trained; the last one investigates."""
STEPS = size({"specialist": 24, "lead": 24, "flat": 30}, {"specialist": 1, "lead": 1, "flat": 1})
EVERY = {"specialist": 2, "lead": 1, "flat": 1}
"""By policy: that each or every second of the oracle's runs is imitated. After half as many, a lead follows the blame, but invents
causes and tools: 0.009 of the reward, and no group with a signal."""
WARM_UP = WARM_UPS["oracle"][1]


def named(policy: str, form: str) -> str:
    """Return the model of a policy in one form, `base` or `trained`."""
    return f"incident-{policy}-{form}"


def split(tasks: Taskset, *, held_out: bool) -> list[Task]:
    """Return the tasks of the incidents of one split."""
    return [task for task in tasks if task.slug.startswith(HELD_OUT_PREFIX) == held_out]


async def lessons(side: str) -> dict[str, list[Run]]:
    """Return the oracle's runs on the incidents to train on, by policy; a specialist's are its reports, each question once."""
    way = importlib.import_module(f"hud_benchmarks.incident_lab.{side}")
    job = await Job.start(f"oracle {side}")
    tasks = Taskset(side, split(way.tasks, held_out=False))
    await tasks.run(players.oracle if side == "flat" else players.team, job=job)
    await job.finish()
    reports = {
        (str(run.task.args["incident"]), child.task.id, str(child.task.args["service"])): child
        for run in job.runs
        for child in run.children
    }
    return (
        {"flat": job.runs}
        if side == "flat"
        else {"specialist": list(reports.values()), "lead": job.runs}
    )


def config_of(policy: str, form: str, seed: int) -> TrainConfig:
    """Return the configuration of a policy in one form; a lead's specialists have the same form."""
    specialists = players.LOOKS if policy == "lead" else ()
    subagents = {area: SubagentConfig(model=named("specialist", form)) for area in specialists}
    options = {**GRPO, "steps": STEPS[policy], "lr": 2e-4}
    return TrainConfig(model=named(policy, form), seed=seed, subagents=subagents, **options)


async def train_side(side: str, record: dict[str, Any], file: Path) -> None:
    """Warm up and train the policies of a side that the record lacks; writes tokens and rollouts into it."""
    seed = record["seed"]
    for policy, runs in (await lessons(side)).items():
        if policy in record["tokens"]:
            continue
        base = named(policy, "base")
        await fork(demo.BASE, base, config=demo.ADAPTER)
        taught = await warm_up(base, runs[:: EVERY[policy]], seed=seed, **WARM_UP)
        print(f"{policy}: {taught.runs} runs, loss {taught.last_loss:.3f}", flush=True)
        await fork(base, named(policy, "trained"), checkpoint=await head(base))
        tasks = Taskset(policy, [run.task for run in runs])
        config = config_of(policy, "trained", seed)
        report = await train(config, tasks=tasks, reporter=Lines(1))
        metrics = [row["metrics"] for row in report.history]
        # A step whose groups have equal rewards computes no loss.
        record["tokens"][policy] = int(sum(row.get("action_tokens:sum", 0) for row in metrics))
        record["rollouts"][policy] = rollouts_of(report, config.group)
        write(file, record)


async def investigated(side: str, form: str, seed: int) -> Rewards:
    """Return the rewards of a side on the held-out incidents."""
    way = importlib.import_module(f"hud_benchmarks.incident_lab.{side}")
    config = config_of(SIDES[side][-1], form, seed)
    tasks = Taskset(f"{side}-held-out", split(way.tasks, held_out=True))
    rewards = rewards_by_attempt((await play(config, await head(config.model), tasks)).runs)
    print(f"{side} {form}, held-out: {shown(rewards)}", flush=True)
    return rewards


async def measure(side: str, record: dict[str, Any], file: Path) -> None:
    """Train a side and play its base and its trained policies; adds rewards and minutes to the record."""
    started = perf_counter()
    await train_side(side, record, file)
    for form in ("base", "trained"):
        rewards = await investigated(side, form, record["seed"])
        record["rewards"] |= rounded({f"{side} {form}": rewards})
    record["minutes"][side] = round((perf_counter() - started) / 60, 1)


def main() -> None:
    """Read the command line, measure, record, and print the table."""
    parser = argparse.ArgumentParser(description="Flat against hierarchical on the incident lab.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--folder", type=Path, help="store to keep, and to go on from")
    parser.add_argument("--sides", default=",".join(SIDES), help="those to measure, in order")
    options = parser.parse_args()
    record: dict[str, Any] = {"seed": options.seed, "steps": STEPS}
    record |= {"rewards": {}, "tokens": {}, "rollouts": {}, "minutes": {}}
    with lab_folder(options.folder, options.seed) as folder:
        draft = folder / "record.json"
        if draft.exists():
            record = json.loads(draft.read_text())
        for side in options.sides.split(","):
            if f"{side} trained" in record["rewards"]:
                continue
            asyncio.run(measure(side, record, draft))
            record.update(circumstances(), at=datetime.now(UTC).isoformat(timespec="seconds"))
            write(draft, record)
        shutil.copy(draft, options.record)
    print(table(record))
    if options.record == RECORD and not SMALLEST:
        write_table(LAB_PAGE, table(record))


if __name__ == "__main__":
    main()
