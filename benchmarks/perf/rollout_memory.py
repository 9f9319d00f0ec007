"""Memory that a process keeps of each in-process rollout: slope of its resident size over 100,000 rollouts.

Rollouts are played and recorded in jobs of 1,000, which end and are dropped, as a service or a training run does. The slope
is that of a least-squares line through the resident size after each job, without the first 10,000 rollouts, in which caches
fill. Bar: 1 KiB a rollout.

    python benchmarks/perf/rollout_memory.py [--rollouts 100000]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import sys
import tempfile

import psutil
from records import report
from sizes import size

from hud.environment import Environment
from hud.eval import Job, LocalRuntime, Taskset
from hud.trace import ToolCall

JOB, WARM_UP, WIDTH = size((1000, 10_000, 256), (2, 2, 2))
BAR = 1024.0

environment = Environment("bench")


@environment.tool
async def look(at: int) -> int:
    """Return a number."""
    return at


@environment.template()
async def one_line(number: int = 0):
    """Ask for one word."""
    answer = yield f"Say word {number}."
    yield 1.0 if answer == "word" else 0.0


async def agent(run):
    """Call a tool, and answer."""
    await run.call_tool(ToolCall(id="1", name="look", arguments={"at": 1}))
    run.trace.content = "word"


async def play(first: int) -> None:
    """Play one job."""
    tasks = Taskset("bench", [one_line(number=first + number) for number in range(JOB)])
    job = await Job.start(f"from {first}")
    await tasks.run(agent, runtime=LocalRuntime(environment), job=job, max_concurrent=WIDTH)
    assert job.reward == 1.0, job.errors[:1]
    await job.finish()


async def main(rollouts: int) -> int:
    """Print the slope; fail above the bar."""
    process, sizes = psutil.Process(), list[tuple[float, float]]()
    for first in range(0, rollouts, JOB):
        await play(first)
        gc.collect()
        sizes.append((first + JOB, process.memory_info().rss))
    kept = [(count, size) for count, size in sizes if count >= WARM_UP]
    slope = statistics.linear_regression(*zip(*kept, strict=True)).slope
    held = report(
        f"resident memory kept of a rollout, {WARM_UP:,} to {rollouts:,}",
        slope,
        "bytes",
        bar=BAR,
        at_most=True,
    )
    report(f"resident memory after {rollouts:,} rollouts", sizes[-1][1] / 2**20, "MiB")
    report(f"resident memory after {WARM_UP:,} rollouts", kept[0][1] / 2**20, "MiB")
    return int(not held)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=size(100_000, 6))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["HUD_HOME"] = home
        os.environ.pop("HUD_API_URL", None)
        sys.exit(asyncio.run(main(given.rollouts)))
