"""Sampling ahead of training against sampling, then training: wall-clock to the same reward, where tools are slow.

The policy and the tasks are the demo's, each tool call is delayed by 50 to 500 ms. Prints the seconds that each way took until
the mean reward of five steps in a row reached a bar that both passed, their ratio, and what `hud plan --simulate` predicts for
both from what the first of them recorded.

python benchmarks/perf/pipeline.py [--steps 30] [--max-lag 3] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "triage"
LOW, HIGH = 0.05, 0.5
WINDOW = 5


def delayed(provider: Any) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """Return a runtime whose tools answer late."""
    chance = random.Random(0)

    @asynccontextmanager
    async def play(task: Any) -> AsyncIterator[Any]:
        async with provider(task) as connection:
            call = connection.call_tool

            async def late(*arguments: Any, **options: Any) -> Any:
                await asyncio.sleep(chance.uniform(LOW, HIGH))
                return await call(*arguments, **options)

            connection.call_tool = late
            yield connection

    return play


async def trained(name: str, steps: int, max_lag: int) -> tuple[list[float], list[float], Any]:
    """Train a fresh fork; returns the second at which each step ended, its reward, and what was reported."""
    from demo import GRPO, TEACHER

    from hud import Taskset
    from hud.client import connect
    from hud.eval.runtimes import LocalRuntime
    from hud.train.config import TrainConfig
    from hud.train.loop import train
    from hud.train.progress import SilentReporter

    class Clock(SilentReporter):
        def __init__(self) -> None:
            self.began, self.ended, self.rewards = perf_counter(), [], []

        def stepped(self, step: int, metrics: dict[str, float]) -> None:
            self.ended.append(perf_counter() - self.began)
            self.rewards.append(metrics["rollout_reward:mean"])

    await connect().post("/v2/models/fork", {"source_model_id": TEACHER, "name": name})
    clock = Clock()
    config = TrainConfig(
        **{**GRPO, "model": name, "steps": steps, "max_lag": max_lag, "eval_every": 0}
    )
    tasks = Taskset.from_file(DEMO / "tasks.py")
    report = await train(config, tasks=tasks, runtime=delayed(LocalRuntime()), reporter=clock)
    return clock.ended, clock.rewards, report


def smoothed(rewards: list[float]) -> list[float]:
    return [fmean(rewards[end - WINDOW : end]) for end in range(WINDOW, len(rewards) + 1)]


async def compare(steps: int, max_lag: int) -> None:
    from hud.cli.plan import _recorded
    from hud.train.planning.simulation import simulate

    runs = {}
    for name, lag in (("then", 0), ("ahead", max_lag)):
        unique = f"{name}-{os.getpid()}"
        ended, rewards, report = await trained(unique, steps, lag)
        runs[name] = (ended, smoothed(rewards))
        measured, setup, _ = await _recorded(unique, None, 512)
        predicted = simulate(measured, setup)
        took = report.seconds
        print(
            f"{name:6} max_lag {lag}: {took:6.1f} s, {took / steps:5.2f} s a step; simulated {predicted.seconds:6.1f} s "
            f"({predicted.seconds / took:.2f}), reward {runs[name][1][0]:.3f} to {runs[name][1][-1]:.3f}",
            flush=True,
        )
    bar = min(max(means) for _, means in runs.values())
    reached = {
        name: next(
            second
            for second, mean in zip(ended[WINDOW - 1 :], means, strict=True)
            if mean >= bar - 1e-9
        )
        for name, (ended, means) in runs.items()
    }
    print(
        f"to reward {bar:.3f}: {reached['then']:.1f} s and {reached['ahead']:.1f} s, ratio "
        f"{reached['then'] / reached['ahead']:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--max-lag", type=int, default=3)
    parser.add_argument(
        "--folder", help="a finished demo's; without it, a short demo is made first"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.folder or scratch)
        if not (folder / "home").exists():
            made = [sys.executable, str(DEMO / "demo.py"), "--folder", str(folder), "--steps", "1"]
            subprocess.run(made, check=True, stdout=subprocess.DEVNULL)
        os.environ["HUD_HOME"] = str((folder / "home").resolve())
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        sys.path.insert(0, str(DEMO))
        asyncio.run(compare(options.steps, options.max_lag))


if __name__ == "__main__":
    main()
