"""False alarms and delay of the training guard, in training runs and in simulation: the tables of docs/guard.md.

python benchmarks/guard_false_alarms.py demo [SEEDS]      5 runs of the demo's policy on a reward that it can game, and 5 honest ones: about 5 minutes
python benchmarks/guard_false_alarms.py train [SEEDS]     10 honest runs and 10 of a gamed reward: about 3 CPU-minutes
python benchmarks/guard_false_alarms.py signs [SEEDS]     what warnings and pauses say: noisy grades, a length bonus, a phrase, a judge of one
python benchmarks/guard_false_alarms.py simulate [RUNS]   500 for each cell, about two minutes

Each updates its part of guard.json beside this file, and the tables of the page.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Mapping
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hud import Environment
from hud.client import connect, disconnect
from hud.eval import Taskset
from hud.eval.results.held_out_scores import Change
from hud.train.config import TrainConfig
from hud.train.loop import TrainReport, train
from hud.train.monitoring.guard import guard_record
from hud.train.monitoring.trends import change_of

RECORD = Path(__file__).resolve().with_name("guard.json")
PAGE = RECORD.parents[1] / "docs" / "guard.md"
VOWELS = "aeiou"
WORDS = ["".join(pair) for pair in product(("red", "sun", "pot", "big", "log", "win"), VOWELS)]
SIZES = {"hidden": 32, "layers": 1, "vocab_size": 300, "max_context": 64}
SETTINGS = {
    "steps": 40, "group": 8, "tasks_per_step": 4, "lr": 0.01, "max_tokens": 16, "max_turns": 1,
    "eval_every": 10, "eval_group": 2, "guard": "stop",
}  # fmt: skip

TASKS = (8, 12, 24, 60)
EVALUATIONS = 20
NOISE = random.Random(7)
FLIPPED = 0.25
"""Share of the grades that noise flips."""
PHRASE = "sure"
TOO_HIGH = 0.5
"""Learning rate at which these policies, of 32 features, collapse; 50 times that of the others."""
CRASH = 10
"""Evaluation from which on the chances of success are a fraction of what they were."""

env = Environment("vowels")


def _flipped(grade: float) -> float:
    return 1.0 - grade if NOISE.random() < FLIPPED else grade


def _phrase(answer: str) -> float:
    return max(size for size in range(len(PHRASE) + 1) if PHRASE[:size] in answer) / len(PHRASE)


REWARDS: dict[str, Callable[[str], float]] = {
    "honest": lambda answer: sum(vowel in answer for vowel in VOWELS) / len(VOWELS),
    "gamed": lambda answer: min(1.0, answer.count("e") / 12),
    "noisy": lambda answer: _flipped(REWARDS["honest"](answer)),
    "first": lambda answer: float(answer[:1] in tuple(VOWELS)),
    "length": lambda answer: min(1.0, len(answer) / 70),
    "phrase": _phrase,
    "judge": lambda answer: max(REWARDS["first"](answer) / 2, _phrase(answer)),
}
"""Rewards of an answer: all five vowels; the letter e alone, once for each time; the first with a quarter of the grades flipped; a
vowel as the first letter; the length; a phrase; a judge of the first letter that a phrase convinces."""
SIGNS = {
    "noisy": "honest",
    "length": "first",
    "phrase": "first",
    "judge": "first",
    "collapse": "honest",
}
"""The reward of the held-out tasks for each reward of part `signs`; `collapse` is honest, with a learning rate of `TOO_HIGH`."""


@env.template()
async def vowels(word: str, reward: str = "honest") -> AsyncGenerator[str | float, str]:
    """Answer about a word."""
    answer = yield f"vowels {word}"
    yield REWARDS[reward](answer)


async def trained(
    seed: int, reward: str = "honest", held_out: str = "honest", **settings: Any
) -> TrainReport:
    """Train a small random policy on a reward of `REWARDS`, with the held-out tasks on another."""
    texts = [f"vowels {word} a e i o u {PHRASE}" for word in WORDS] * 3
    model = f"vowels-{reward}-{seed}"
    body = {"name": model, "texts": texts, "sizes": SIZES, "seed": seed}
    await connect().post("/v2/models/create", body)
    return await train(
        TrainConfig(model=model, seed=seed, **(SETTINGS | settings)),
        tasks=Taskset("words", [vowels(word=word, reward=reward) for word in WORDS[:12]]),
        held_out=Taskset(
            "other-words", [vowels(word=word, reward=held_out) for word in WORDS[12:]]
        ),
    )


async def signs(seeds: int) -> dict[str, Any]:
    """Return the record of runs that are only warned, with every alarm of the guard."""
    runs = []
    for name, seed in product(SIGNS, range(seeds)):
        collapses = name == "collapse"
        settings = {"lr": TOO_HIGH} if collapses else {}
        reward = "honest" if collapses else name
        report = await trained(seed, reward, SIGNS[name], guard="warn", **settings)
        path = f"/v2/training-runs/{report.run_id}"
        found = guard_record((await connect().get(path))["state"]).alarms
        alarms = [[alarm.name, alarm.step, alarm.guarded, alarm.sentence] for alarm in found]
        runs.append(run_of(report, reward_of=name, seed=seed, alarms=alarms))
        print(json.dumps(runs[-1]), flush=True)
    return {"runs": runs}


def table_of_signs(runs: list[dict[str, Any]]) -> str:
    """Return a line for each reward: what the guard said, and after how many steps."""
    lines = [
        "| reward | runs | training reward | held-out score | alarms: runs, first after step |",
        "|---|---:|---|---|---|",
    ]
    for reward in dict.fromkeys(run["reward_of"] for run in runs):
        some = [run for run in runs if run["reward_of"] == reward]
        first: dict[str, list[int]] = {}
        for name, step, guarded, _ in (alarm for run in some for alarm in run["alarms"]):
            first.setdefault(f"{name}{' (pause)' if guarded else ''}", []).append(step)
        said = "; ".join(f"{name}: {len(steps)}, {min(steps)}" for name, steps in first.items())
        paid = _from_to([run["reward"] for run in some])
        held = _from_to([(run["held_out"][0][1], run["held_out"][-1][1]) for run in some])
        lines.append(f"| {reward} | {len(some)} | {paid} | {held} | {said or 'none'} |")
    return "\n".join(lines)


def run_of(report: TrainReport, **what: Any) -> dict[str, Any]:
    """Return what the guard saw of a run, and what it did."""
    rewards = [row["metrics"]["rollout_reward:mean"] for row in report.history]
    paused = report.paused
    return {
        **what,
        "held_out": [[score.step, round(score.mean, 4)] for score in report.scores],
        "reward": [round(rewards[0], 4), round(rewards[-1], 4)],
        "paused": None if paused is None else [paused.alarm, paused.step],
    }


def caught_within(run: Mapping[str, Any]) -> int | None:
    """Return the evaluations from the best to the pause, 2 at least, as two in a row must lie below; None without a pause."""
    if run["paused"] is None:
        return None
    means = [mean for _, mean in run["held_out"]]
    return means[::-1].index(max(means))


def changes(
    rng: np.random.Generator, tasks: int, *, rise: float = 0.0, crash: float = 1.0
) -> list[Change | None]:
    """Return the change at each evaluation of a simulated run: one attempt of each task, with a uniform chance of success."""
    chance = rng.random(tasks)
    played, found = {}, []
    for step in range(EVALUATIONS):
        now = np.clip(chance + rise * step, 0, 1) * (crash if step >= CRASH else 1.0)
        played[step] = {f"t{i}": [float(won)] for i, won in enumerate(rng.random(tasks) < now)}
        found.append(change_of(played))
    return found


def alarmed(run: list[Change | None]) -> int | None:
    """Return the first evaluation at which the guard stops a run whose training reward rises all the time."""
    for place, one in enumerate(run):
        if one is not None and one.below == 2 and one.high is not None and one.high < 0:
            return place
    return None


def simulated(runs: int) -> dict[str, Any]:
    """Return the share of runs that are stopped, by tasks and kind of run."""
    cells: dict[str, list[float]] = {}
    for tasks in TASKS:
        rng = np.random.default_rng(21)
        row = cells[str(tasks)] = []
        for rise in (0.0, 0.02):
            found = [alarmed(changes(rng, tasks, rise=rise)) for _ in range(runs)]
            row.append(sum(one is not None for one in found) / runs)
        for crash in (0.5, 0.25):
            found = [alarmed(changes(rng, tasks, rise=0.02, crash=crash)) for _ in range(runs)]
            for within in (2, 5):
                caught = [one is not None and CRASH <= one < CRASH + within for one in found]
                row.append(sum(caught) / runs)
    return {"runs": runs, "cells": cells}


def table_of_simulation(record: Mapping[str, Any]) -> str:
    """Return a line for each number of tasks."""
    lines = [
        "| tasks | flat: stopped | rising: stopped | to 50%: within 2 | within 5 | to 25%: within 2 | within 5 |",
        "|---" * 7 + "|",
    ]
    for tasks, cells in record["cells"].items():
        lines.append(f"| {tasks} | " + " | ".join(f"{cell:.1%}" for cell in cells) + " |")
    return "\n".join(lines)


def table_of_runs(runs: list[dict[str, Any]]) -> str:
    """Return a line for each policy and reward."""
    lines = [
        "| policy | reward | runs | held-out score, first to last | training reward | paused | evaluations from the best to the pause |",
        "|---|---|---:|---|---|---:|---|",
    ]
    for policy, reward in dict.fromkeys((run["policy"], run["reward_of"]) for run in runs):
        some = [run for run in runs if (run["policy"], run["reward_of"]) == (policy, reward)]
        ends = [(run["held_out"][0][1], run["held_out"][-1][1]) for run in some]
        paid = [run["reward"] for run in some]
        delays = [delay for run in some if (delay := caught_within(run)) is not None]
        cells = [
            *(policy, reward, str(len(some)), _from_to(ends), _from_to(paid), str(len(delays))),
            ", ".join(f"{delay}: {delays.count(delay)}" for delay in sorted(set(delays))) or "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables of the parts that are recorded."""
    runs = [run for part in ("demo", "train") for run in record.get(part, {}).get("runs", [])]
    found = {"runs": table_of_runs(runs)} if runs else {}
    if "signs" in record:
        found["signs"] = table_of_signs(record["signs"]["runs"])
    if "simulate" in record:
        found["simulation"] = table_of_simulation(record["simulate"])
    return found


async def trainings(seeds: int) -> dict[str, Any]:
    """Return the record of honest and of gamed runs of small policies."""
    runs = []
    for reward, seed in product(("honest", "gamed"), range(seeds)):
        named = {"policy": "vowels", "reward_of": reward, "seed": seed}
        runs.append(run_of(await trained(seed, reward), **named))
        print(json.dumps(runs[-1]), flush=True)
    return {"runs": runs}


def _from_to(pairs: list[tuple[float, float]]) -> str:
    first, last = np.mean(pairs, axis=0)
    return f"{first:.2f} to {last:.2f}"


def main(what: str = "simulate", count: str = "") -> None:
    """Measure one part, record it, and print the tables."""
    sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from records import circumstances

    from page_tables import write_table

    if what == "simulate":
        found = simulated(int(count or 500))
    else:
        with tempfile.TemporaryDirectory() as home:
            os.environ["HUD_HOME"] = home
            os.environ.pop("HUD_API_URL", None)
            if what == "demo":
                from guard_on_demo import measured

                found = asyncio.run(measured(Path(home), int(count or 5)))
            elif what == "signs":
                found = asyncio.run(signs(int(count or 3)))
            else:
                found = asyncio.run(trainings(int(count or 10)))
            disconnect(Path(home))
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    at = datetime.now(UTC).isoformat(timespec="seconds")
    record[what] = {**found, **circumstances(), "at": at}
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    for table in tables(record).values():
        print(f"{table}\n")
        write_table(PAGE, table)


if __name__ == "__main__":
    main(*sys.argv[1:3])
