"""Held-out scores before and after a policy teaches itself by hints: a table of docs/distillation.md.

    python benchmarks/teacher_hints.py [--folder FOLDER]       ten minutes on one core; goes on where it stopped

The task is that of distillation.py. The policy imitates an apprentice that is often wrong, and answers of conversations in which a second
message names the answer: any digits, so that it learns to read, and nothing about the task. Then each seed's fork learns from its own
rollouts, with itself as the teacher that reads the task's solution. The control reads the solution of another task. No score is measured
with a hint but the one of the policy that reads it. Writes teacher_hints.json beside this file, and its table into the page.
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

from distillation import DIGITS, LARGE, SHARED, guessed, score_of, shifted, task_sets
from gain_tables import teacher_hints
from hud import Environment, Taskset
from hud.client import connect
from hud.graders import EvaluationResult
from hud.train.config import TrainConfig
from hud.train.supervised.supervised_run import warm_up
from rollouts_to_score import groups_of, held_out_scores, recorded, run_benchmark, train_fork

PAGE = Path(__file__).resolve().parents[1] / "docs/distillation.md"
SEEDS = range(size(5, 1))
HINTS = {"its own solution": "solution", "another task's solution": "other"}
EXAMPLES = size(1200, 20)
"""Of each kind."""
EPOCHS = size(6, 1)
RIGHT = 0.65
"""Share of the apprentice's digits that are right."""
SETTINGS = {
    "group": 1,
    "tasks_per_step": 4,
    "steps": size(128, 1),
    "eval_every": size(64, 1),
    "eval_group": 4,
    "lr": 1e-3,
    "max_tokens": 16,
    "max_turns": 1,
    "keep": 2,
}

env = Environment("hinted-digits")


def told(answer: list[str]) -> str:
    """Return the hint that names an answer."""
    return f"the answer is {' '.join(answer)}"


def question(digits: str) -> str:
    """Return the prompt of a task."""
    return f"add 3 to {digits}"


@env.template()
async def shift(digits: str):
    answer = yield question(digits)
    right = shifted(digits.split())
    other = shifted([str((int(digit) + 5) % 10) for digit in right])
    info = {"solution": told(right), "other": told(other)}
    yield EvaluationResult(reward=float(answer.split() == right), info=info)


@env.template()
async def read(digits: str):
    """Ask with the hint in the prompt, as the teacher reads it."""
    right = shifted(digits.split())
    texts = (question(digits), told(right))
    answer = yield [{"role": "user", "content": text} for text in texts]
    yield float(answer.split() == right)


def write_examples(path: Path, held_out: set[str]) -> None:
    """Write the apprentice's answers, and as many answers that a hint names."""
    rng = random.Random(2)
    with path.open("w") as file:
        for _ in range(EXAMPLES):
            digits, named = (rng.choices("0123456789", k=DIGITS) for _ in range(2))
            if " ".join(digits) in held_out:
                continue
            guess = guessed(digits, RIGHT, rng)
            for texts in (
                (question(" ".join(digits)), " ".join(guess)),
                (question(" ".join(digits)), told(named), " ".join(named)),
            ):
                *asked, answer = texts
                messages = [{"role": "user", "content": text} for text in asked]
                messages.append({"role": "assistant", "content": answer})
                file.write(json.dumps({"messages": messages}) + "\n")


async def make_policy(folder: Path, held_out: list[str]) -> None:
    """Make the policy that reads hints."""
    path = folder / "examples.jsonl"
    write_examples(path, set(held_out))
    texts = [f"{question('0 1 2 3 4 5 6 7 8 9')} {told(['0'])}"] * 3
    sizes = {**SHARED, **LARGE, "max_context": 128}
    await connect().post("/v2/models/create", {"name": "reader", "texts": texts, "sizes": sizes})
    await warm_up("reader", file=path, epochs=EPOCHS, lr=3e-3)


async def played(hint: str, seed: int, tasks: Taskset, held_out: Taskset) -> dict[str, Any]:
    """Train a fork of the policy with itself as its teacher."""
    name = f"{HINTS[hint]}-{seed}"
    config = TrainConfig(model=name, teacher=name, teacher_hint=HINTS[hint], seed=seed, **SETTINGS)
    report = await train_fork("reader", config, 2.0, tasks, held_out)
    return {
        "hint": hint,
        "seed": seed,
        "rollouts": sum(groups_of(report)),
        "seconds": round(report.seconds),
        "held_out": held_out_scores(report),
    }


async def measure(folder: Path) -> dict[str, Any]:
    """Return the record of all runs; one that stopped on its way goes on from there."""
    lists, held_out_lists = task_sets()
    tasks = Taskset("digits", [shift(digits=digits) for digits in lists])
    held_out = Taskset("held-out", [shift(digits=digits) for digits in held_out_lists])
    hinted = Taskset("hinted", [read(digits=digits) for digits in held_out_lists])
    if not (folder / "scores.json").exists():
        await make_policy(folder, held_out_lists)
        scores = {
            "alone": await score_of("reader", held_out),
            "hinted": await score_of("reader", hinted),
        }
        (folder / "scores.json").write_text(json.dumps(scores))
    scores = json.loads((folder / "scores.json").read_text())
    print(json.dumps(scores), flush=True)
    runs = [
        await recorded(
            folder / f"{HINTS[hint]}-{seed}.json", partial(played, hint, seed, tasks, held_out)
        )
        for hint, seed in product(HINTS, SEEDS)
    ]
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {**circumstances(), "at": at, "scores": scores, "runs": runs}


if __name__ == "__main__":
    run_benchmark("Self-distillation from a hint.", __file__, measure, teacher_hints, PAGE)
