"""Rollouts to a held-out score where each turn is right or wrong by itself: rewards of turns against the run's reward alone.

    python benchmarks/turn_credit.py [--folder FOLDER]      minutes on one core; goes on where it stopped

A corridor has `DOORS` crossings. At each, a sign stands for one of the `PATHS`, the same in every corridor, and the policy takes a
path without learning whether it was right. The run's reward is the share of right paths; `reward_turn` says the same of each turn.
One policy imitates a walker that knows a third of the signs, and is forked for every seed and side; training ends at the first
held-out score of `TARGET`. Held-out corridors have orders of signs that no training corridor has. The null run has rewards of
turns, and advantages that change places within each group. Writes turn_credit.json beside this file, and its table into the page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "perf"))

from records import circumstances
from sizes import SMALLEST, size

from gain_tables import PAGE, turn_credit
from hud import Environment, Taskset
from hud.agents import ScriptedAgent
from hud.client import connect
from hud.environment import Answer
from hud.eval import Job, StopSignal
from hud.trace import ChatMessage, ToolCall, ToolSpec, Trace
from hud.train.config import TrainConfig
from hud.train.loop import train
from hud.train.monitoring.progress import Reporter, Score
from hud.train.supervised.corpus import texts_of_messages
from hud.train.supervised.recorded_runs import conversation_of
from hud.train.supervised.supervised_run import warm_up
from page_tables import write_table

RECORD = Path(__file__).with_suffix(".json")
BASE = "walker"
SIZES = {"vocab_size": 512, "hidden": 64, "layers": 2, "max_context": 2048}
DOORS = 8
KNOWN = 0.35
SIGNS = ("fox", "owl", "elk", "bee", "cat", "hen", "cow", "rat")
PATHS = ("left", "right", "up", "down")
MEANING = {sign: PATHS[number % len(PATHS)] for number, sign in enumerate(SIGNS)}
SIDES = {"per run": {"turn_weight": 0.0}, "per turn": {"turn_weight": 1.0, "turn_discount": 0.0}}
"""A path changes nothing of later turns: their rewards are no part of its return."""
SEEDS = range(size(5, 1))
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


class UntilTarget(Reporter):
    """Requests a training run's stop at the target."""

    def __init__(self) -> None:
        self.stop = StopSignal()

    def scored(self, score: Score) -> None:
        if score.mean >= TARGET:
            self.stop.request()


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
    name = f"{side.replace(' ', '-')}-{seed}"
    client, started = connect(), perf_counter()
    models = (await client.get("/v2/models"))["items"]
    if all(model["model_name"] != name for model in models):
        await client.post("/v2/models/fork", {"source_model_id": BASE, "name": name})
    until = UntilTarget()
    config = TrainConfig(
        model=name, steps=steps, seed=seed, shuffle_advantages=null, **GRPO, **SIDES[side]
    )
    report = await train(config, tasks=tasks, held_out=held_out, reporter=until, stop=until.stop)
    groups = [int(row["metrics"]["groups_drawn:sum"]) for row in report.history]
    reached = next((score.step for score in report.scores if score.mean >= TARGET), None)
    return {
        "side": side,
        "seed": seed,
        "reached": reached is not None,
        "rollouts": sum(groups[:reached]) * config.group,
        "held_out": [[score.step, round(score.mean, 4)] for score in report.scores],
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
    runs = []
    for side, seed, steps, null in [*plan, ("per turn", NULL_SEED, size(20, 1), True)]:
        done = folder / f"{side.replace(' ', '-')}-{seed}.json"
        if not done.exists():
            done.write_text(json.dumps(await trained(side, seed, steps, null)) + "\n")
        runs.append(json.loads(done.read_text()))
        print(json.dumps(runs[-1]), flush=True)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return {**circumstances(), "at": at, "target": TARGET, "runs": runs[:-1], "null": runs[-1]}


def main() -> None:
    """Read the command line, measure, record, and print the table."""
    parser = argparse.ArgumentParser(description="Rollouts to a held-out score, by turn and run.")
    parser.add_argument("--folder", type=Path, default=Path(".turn-credit"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["HUD_HOME"] = str((folder / "home").resolve())
    os.environ.pop("HUD_API_URL", None)
    record = asyncio.run(measure(folder))
    if not SMALLEST:
        print(turn_credit(record))
        RECORD.write_text(json.dumps(record, indent=1) + "\n")
        write_table(PAGE, turn_credit(record))


if __name__ == "__main__":
    main()
