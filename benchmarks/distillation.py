"""Rollouts to a teacher's held-out score, by on-policy distillation and by GRPO: a table of docs/gains.md.

    python benchmarks/distillation.py [--folder FOLDER]       25 minutes on one core; goes on where it stopped

The task is to add three to each of four digits, without a carry; the reward is 1 if all are right, else 0. No digit of the answer depends on
those before it, so the teacher's scores hold after a wrong one, too. The teacher imitates right answers. The student is smaller, and
imitates an apprentice that is often wrong. It is forked for every seed and method. A run ends at the first held-out score within the
teacher's interval; rollouts of held-out scores, every 128 of training, are not counted. The null teacher has the teacher's size, and
imitates the student's apprentice. Learning rates and batches were chosen for each method on seed 100, which is none of the five.
Writes distillation.json beside this file, and its table into the page.
"""

from __future__ import annotations

import json
import random
import sys
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))

from records import circumstances
from sizes import size

from gain_tables import distillation
from hud import Environment, Taskset
from hud.agents import create_agent
from hud.client import connect
from hud.eval.results.intervals import clustered_interval
from hud.train.config import TrainConfig
from hud.train.supervised.supervised_run import warm_up
from rollouts_to_score import (
    groups_of,
    held_out_scores,
    recorded,
    run_benchmark,
    steps_to,
    train_fork,
)

SEEDS = range(size(5, 1))
DISTILLING = {"group": 1, "lr": 1e-3, "eval_every": 32}
METHODS: dict[str, dict[str, Any]] = {
    "distillation": {**DISTILLING, "teacher": "teacher", "steps": size(400, 1)},
    "GRPO": {"group": 8, "lr": 2e-3, "eval_every": 4, "steps": size(150, 1)},
    "null": {**DISTILLING, "teacher": "peer", "steps": size(160, 1)},
    "distillation by sampled tokens": {
        **DISTILLING,
        "teacher": "teacher",
        "loss_config": {"kl_advantage_coef": 1.0},
        "steps": size(400, 1),
    },
}
"""Settings of the methods. A run that has not reached the score by its last step counts with all its rollouts."""
LARGE = {"hidden": 96, "layers": 2, "heads": 4, "kv_heads": 2}
SIZES = {"teacher": LARGE, "student": {**LARGE, "hidden": 48}, "peer": LARGE}
SHARED = {"vocab_size": 300, "max_context": 64}
EXAMPLES = size(1200, 40)
EPOCHS = {"teacher": size(6, 1), "student": size(4, 1), "peer": size(4, 1)}
RIGHT = {"teacher": 1.0, "student": 0.65, "peer": 0.65}
"""Share of digits that are right in the examples; others are any digits."""
DIGITS = 4
TRAINING, HELD_OUT = size(600, 8), size(60, 4)
SETTINGS = {"tasks_per_step": 4, "max_tokens": 16, "max_turns": 1, "keep": 2, "eval_group": 4}

env = Environment("digits")


@env.template()
async def shift(digits: str):
    answer = yield f"add 3 to {digits}"
    yield float(answer.split() == shifted(digits.split()))


def shifted(digits: list[str]) -> list[str]:
    """Return the digits plus three, modulo ten."""
    return [str((int(digit) + 3) % 10) for digit in digits]


def task_sets() -> tuple[list[str], list[str]]:
    """Return the digits of training tasks and of held-out ones."""
    rng = random.Random(1)
    drawn: dict[str, None] = {}
    while len(drawn) < TRAINING + HELD_OUT:
        drawn[" ".join(rng.choices("0123456789", k=DIGITS))] = None
    lists = list(drawn)
    return lists[HELD_OUT:], lists[:HELD_OUT]


def write_examples(path: Path, right: float, held_out: set[str]) -> None:
    """Write answers with this share of right digits; the others are any digits."""
    rng = random.Random(2)
    with path.open("w") as file:
        for _ in range(EXAMPLES):
            digits = rng.choices("0123456789", k=DIGITS)
            if " ".join(digits) in held_out:
                continue
            answer = guessed(digits, right, rng)
            messages = [
                {"role": "user", "content": f"add 3 to {' '.join(digits)}"},
                {"role": "assistant", "content": " ".join(answer)},
            ]
            file.write(json.dumps({"messages": messages}) + "\n")


def guessed(digits: list[str], right: float, rng: random.Random) -> list[str]:
    """Return an answer with this share of right digits; the others are any digits."""
    return [
        digit if rng.random() < right else rng.choice("0123456789") for digit in shifted(digits)
    ]


async def make_models(folder: Path, held_out: list[str]) -> None:
    """Make the teacher, the student and its peer, each by imitation."""
    texts = [f"add 3 to {' '.join('0123456789')}"] * 3
    for name, right in RIGHT.items():
        path = folder / f"{name}.jsonl"
        write_examples(path, right, set(held_out))
        sizes = {**SHARED, **SIZES[name]}
        await connect().post("/v2/models/create", {"name": name, "texts": texts, "sizes": sizes})
        await warm_up(name, file=path, epochs=EPOCHS[name], lr=3e-3)


async def score_of(model: str, tasks: Taskset) -> dict[str, float]:
    """Return a model's held-out score with its interval over tasks."""
    job = await tasks.run(create_agent(model, completion_kwargs={"max_tokens": 16}), group=4)
    by_task: dict[str, list[float]] = {}
    for run in job.runs:
        by_task.setdefault(run.slug, []).append(run.reward or 0.0)
    interval = clustered_interval(by_task.values())
    assert interval is not None
    mean = sum(map(sum, by_task.values())) / sum(map(len, by_task.values()))
    return {
        "mean": round(mean, 4),
        "low": round(interval.low, 4),
        "high": round(interval.high, 4),
    }


async def played(
    method: str, seed: int, target: float, tasks: Taskset, held_out: Taskset
) -> dict[str, Any]:
    """Train a fork of the student to the target, and return the rollouts that it took."""
    name = method.lower().replace(" ", "-")
    config = TrainConfig(model=f"{name}-{seed}", seed=seed, **SETTINGS, **METHODS[method])
    report = await train_fork("student", config, target, tasks, held_out)
    step = steps_to(report, target)
    return {
        "method": method,
        "seed": seed,
        "reached": step is not None,
        "rollouts": sum(groups_of(report)[:step]) * config.group,
        "seconds": round(report.seconds),
        "held_out": held_out_scores(report),
    }


async def measure(folder: Path) -> dict[str, Any]:
    """Return the record of all runs; one that stopped on its way goes on from there."""
    lists, held_out_lists = task_sets()
    tasks = Taskset("digits", [shift(digits=digits) for digits in lists])
    held_out = Taskset("held-out", [shift(digits=digits) for digits in held_out_lists])
    if not (folder / "scores.json").exists():
        await make_models(folder, held_out_lists)
        scores = {name: await score_of(name, held_out) for name in SIZES}
        (folder / "scores.json").write_text(json.dumps(scores))
    scores = json.loads((folder / "scores.json").read_text())
    print(json.dumps(scores), flush=True)
    target = scores["teacher"]["low"]
    runs = [
        await recorded(
            folder / f"{method}-{seed}.json", partial(played, method, seed, target, tasks, held_out)
        )
        for method, seed in product(METHODS, SEEDS)
    ]
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {**circumstances(), "at": at, "scores": scores, "runs": runs}


if __name__ == "__main__":
    run_benchmark("Rollouts to a teacher's held-out score.", __file__, measure, distillation)
