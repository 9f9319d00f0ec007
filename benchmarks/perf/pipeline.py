"""Sampling ahead of training against sampling, then training: wall-clock to the same reward, where tools are slow.

The policy and the tasks are the demo's, each tool call is delayed by 50 to 500 ms. The loss is the one that `hud train`
takes where none is given: ahead it is ppo, whose gradient of new tokens is that of the demo's own loss. So is the number of
rollouts at a time: 64 in turns, which are all that a step has, and 128 ahead. For each seed, both ways train a fresh fork until
the mean reward of five steps in a row has reached a bar. Prints the seconds that each took, and what `hud plan --simulate`
predicts for as many steps from what that run recorded.

python benchmarks/perf/pipeline.py [--reward 0.9] [--max-lag 2] [--max-concurrent 64] [--seeds 3] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

from records import report
from sizes import size

from hud.train.monitoring.progress import Reporter

if TYPE_CHECKING:
    from hud.eval import StopSignal

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


@dataclass
class Way:
    """One way to train: how far sampling may be ahead, and what came of it."""

    name: str
    max_lag: int
    seconds: list[float] = field(default_factory=list)
    """Until the bar was reached, for each seed."""

    async def train(self, seed: int, options: argparse.Namespace) -> None:
        """Train a fresh fork until it has reached the bar, and say how that went."""
        from demo import GRPO, TEACHER

        from hud import Taskset
        from hud.cli.training.plan_simulation import recorded
        from hud.client import connect
        from hud.eval import StopSignal
        from hud.eval.runtimes import LocalRuntime
        from hud.train.config import TrainConfig
        from hud.train.loop import train
        from hud.train.planning.simulation import simulate

        name = f"{self.name}-{seed}-{os.getpid()}"
        await connect().post("/v2/models/fork", {"source_model_id": TEACHER, "name": name})
        stop = StopSignal()
        clock = Clock(options.reward, stop)
        changed: dict[str, Any] = {
            "model": name,
            "seed": seed,
            "steps": options.steps,
            "eval_every": 0,
            "max_lag": self.max_lag,
        }
        if options.max_concurrent is not None:
            changed["max_concurrent"] = options.max_concurrent
        usual = {key: value for key, value in GRPO.items() if key != "loss"}
        config = TrainConfig(**{**usual, **changed})
        tasks = Taskset.from_file(DEMO / "tasks.py")
        runtime = delayed(LocalRuntime())
        report = await train(config, tasks=tasks, runtime=runtime, reporter=clock, stop=stop)
        took, steps = clock.ended[-1], report.next_step
        measured, setup, _ = await recorded(name, None, 512)
        predicted = simulate(measured, dataclasses.replace(setup, steps=steps)).seconds
        self.seconds.append(took)
        print(
            f"seed {seed}, {self.name:5}: {took:6.1f} s, {steps} steps, reward {clock.reward:.3f}, {took / steps:.2f} s a step; "
            f"simulated {predicted:6.1f} s ({predicted / took:.2f})",
            flush=True,
        )


class Clock(Reporter):
    """Notes when each step ended and what it was rewarded with; stops at the bar."""

    def __init__(self, bar: float, stop: StopSignal) -> None:
        self.bar, self.stop = bar, stop
        self.began = perf_counter()
        self.ended: list[float] = []
        self.rewards: list[float] = []

    @property
    def reward(self) -> float:
        """Mean of the last steps'."""
        return fmean(self.rewards[-WINDOW:])

    def stepped(self, step: int, metrics: dict[str, float]) -> None:
        self.ended.append(perf_counter() - self.began)
        self.rewards.append(metrics["rollout_reward:mean"])
        if step + 1 >= WINDOW and self.reward >= self.bar:
            self.stop.request()


async def compare(options: argparse.Namespace) -> None:
    ways = [Way("then", 0), Way("ahead", options.max_lag)]
    for seed in range(options.seeds):
        for way in ways if seed % 2 == 0 else reversed(ways):
            await way.train(seed, options)
    then, ahead = (way.seconds for way in ways)
    ratios = [one / other for one, other in zip(then, ahead, strict=True)]
    print("  of each seed " + ", ".join(f"{ratio:.2f}" for ratio in ratios))
    report(
        f"until the reward is {options.reward}, sampled ahead",
        sum(ahead),
        "s",
        peer="synchronous",
        peer_value=sum(then),
        ratio=sum(then) / sum(ahead),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reward", type=float, default=0.9, help="the bar")
    parser.add_argument("--steps", type=int, default=size(40, WINDOW), help="most that are taken")
    parser.add_argument("--max-lag", type=int, default=2)
    parser.add_argument("--max-concurrent", type=int, help="the default of either way")
    parser.add_argument("--seeds", type=int, default=size(3, 1))
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
        sys.path.insert(0, str(DEMO))
        asyncio.run(compare(options))


if __name__ == "__main__":
    main()
