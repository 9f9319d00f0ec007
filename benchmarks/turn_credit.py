"""Rollouts to a held-out score where each turn is right or wrong by itself: rewards of turns against the run's reward alone.

    python benchmarks/turn_credit.py [--folder FOLDER]      minutes on one core; goes on where it stopped

A corridor has `DOORS` crossings. At each, a sign stands for one of the `PATHS`, the same in every corridor, and the policy takes a
path without learning whether it was right. The run's reward is the share of right paths; `reward_turn` says the same of each turn.
One policy imitates a walker that knows a third of the signs, and is forked for every seed and side; training ends at the first
held-out score of `TARGET`. Held-out corridors have orders of signs that no training corridor has. The null run has rewards of
turns, and advantages that change places within each group. Writes turn_credit.json beside this file, and its table into the page.
"""

from __future__ import annotations

import random
import sys
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))

from records import circumstances
from sizes import size

from gain_tables import turn_credit
from hud import Environment, Taskset
from hud.agents import ScriptedAgent
from hud.client import connect
from hud.environment import Answer
from hud.eval import Job
from hud.exchange.supervision import conversation_of
from hud.trace import ChatMessage, ToolCall, ToolSpec, Trace
from hud.train.config import TrainConfig
from hud.train.supervised.corpus import texts_of_messages
from hud.train.supervised.supervised_run import warm_up
from rollouts_to_score import (
    groups_of,
    held_out_scores,
    recorded,
    run_benchmark,
    steps_to,
    train_fork,
)

BASE = "walker"
SIZES = {"vocab_size": 512, "hidden": 64, "layers": 2, "max_context": 2048}
DOORS = 8
KNOWN = 0.35
SIGNS = ("fox", "owl", "elk", "bee", "cat", "hen", "cow", "rat")
PATHS = ("left", "right", "up", "down")
MEANING = {sign: PATHS[number % len(PATHS)] for number, sign in enumerate(SIGNS)}
SIDES = {"per run": {"turn_weight": 0.0}, "per turn": {"turn_weight": 1.0, "turn_discount": 0.0}}
"""A path changes nothing of later turns: their rewards are no part of its return."""
SEEDS = range(size(10, 1))
"""The first five were measured alone before, and left the intervals of the two sides overlapping; five more were fixed then."""
NULL_SEED = 1000
TARGET = 0.7
TRAINED, HELD_OUT = size((256, 32), (4, 2))
"""Corridors of each split."""
IMITATED_RUNS = size(768, 4)
STEPS = size(80, 1)
"""A run that has not reached the target by then counts with all its rollouts."""
GRPO: dict[str, Any] = {
    "group": 8,
    "tasks_per_step": 2,
    "lr": 5e-4,
    "loss_config": {"token_mean": 1.0},
    "max_grad_norm": 1.0,
    "max_turns": DOORS + 1,
    "max_tokens": 24,
    "eval_every": 2,
    "eval_group": 1,
    "guard": "off",
    "keep": 1,
}

env = Environment("corridor", version="1.0.0")


@env.tool
async def walk(path: str) -> str:
    """Take a path."""
    state = env.state
    right = MEANING[state.signs[state.passed]] == path if state.passed < DOORS else False
    env.reward_turn(float(right))
    state.right += right
    state.passed += 1
    return state.signs[state.passed] if state.passed < DOORS else "end"


@env.template()
async def corridor(seed: int) -> AsyncGenerator[object, Answer[str]]:
    """Walk through a corridor by its signs."""
    env.state.signs = random.Random(f"corridor {seed}").choices(SIGNS, k=DOORS)
    env.state.passed = env.state.right = 0
    yield env.state.signs[0]
    yield env.state.right / max(DOORS, env.state.passed)


def walker(seed: int) -> ScriptedAgent:
    """Return the agent that the base imitates: it walks to the end, by the sign at a share of `KNOWN`, else at random."""
    luck = random.Random(seed)

    def play(messages: list[ChatMessage], tools: list[ToolSpec], trace: Trace) -> str | ToolCall:
        del tools, trace
        results = [message["content"] for message in messages if message["role"] == "tool"]
        if len(results) == DOORS:
            return "out"
        sign = str(results[-1] if results else messages[0]["content"])
        path = MEANING[sign] if luck.random() < KNOWN else luck.choice(PATHS)
        return ToolCall(id=f"call_{len(results)}", name="walk", arguments={"path": path})

    return ScriptedAgent(play, name="walker")


async def make_base(tasks: Taskset) -> None:
    """Make the base: a random transformer that imitates the walker."""
    job = await Job.start("walker", group=IMITATED_RUNS // TRAINED)
    await tasks.run(walker(0), job=job)
    await job.finish()
    spoken = [conversation_of(run.trace) for run in job.runs[:200]]
    texts = [text for messages in spoken for text in texts_of_messages(messages)]
    await connect().post(
        "/v2/models/create", {"name": BASE, "texts": texts, "seed": 0, "sizes": SIZES}
    )
    await warm_up(BASE, job.runs, seed=0, epochs=2, batch=8, lr=2e-3)


async def trained(side: str, seed: int, steps: int, null: bool = False) -> dict[str, Any]:
    """Train a fork of the base to the target; return the rollouts that it took, and its held-out scores."""
    tasks, held_out = splits()
    started = perf_counter()
    config = TrainConfig(
        model=f"{side.replace(' ', '-')}-{seed}",
        steps=steps,
        seed=seed,
        shuffle_advantages=null,
        **GRPO,
        **SIDES[side],
    )
    report = await train_fork(BASE, config, TARGET, tasks, held_out)
    reached = steps_to(report, TARGET)
    return {
        "side": side,
        "seed": seed,
        "reached": reached is not None,
        "rollouts": sum(groups_of(report)[:reached]) * config.group,
        "held_out": held_out_scores(report),
        "seconds": round(perf_counter() - started),
    }


def splits() -> tuple[Taskset, Taskset]:
    """Return the corridors of training, and held-out ones."""
    numbers = range(TRAINED + HELD_OUT)
    tasks = [corridor(seed=number).model_copy(update={"slug": f"c{number}"}) for number in numbers]
    return Taskset("corridors", tasks[:TRAINED]), Taskset("held-out", tasks[TRAINED:])


async def measure(folder: Path) -> dict[str, Any]:
    """Return the record of all runs; a stopped measurement continues."""
    if not (folder / "taught").exists():
        await make_base(splits()[0])
        (folder / "taught").touch()
    plan = [(side, seed, STEPS, False) for seed, side in product(SEEDS, SIDES)]
    runs = [
        await recorded(
            folder / f"{side.replace(' ', '-')}-{seed}.json",
            partial(trained, side, seed, steps, null),
        )
        for side, seed, steps, null in [*plan, ("per turn", NULL_SEED, size(20, 1), True)]
    ]
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {**circumstances(), "at": at, "target": TARGET, "runs": runs[:-1], "null": runs[-1]}


if __name__ == "__main__":
    run_benchmark("Rollouts to a held-out score, by turn and run.", __file__, measure, turn_credit)
