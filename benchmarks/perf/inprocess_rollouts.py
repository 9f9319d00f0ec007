"""In-process rollouts a second: a one-line template, an agent that does nothing, everything recorded.

Bar: 3,000 a second on two cores, flat from 32 to 1,000 concurrent. The plain loop beside it is the same
template and agent driven by hand, with no runs, no traces, no limits and no recording.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time

from records import report

from hud.environment import Environment
from hud.eval import Job, LocalRuntime, Taskset

RUNS = 3000
WIDTHS = (32, 256, 1000)
WARM_UP = 2
"""Batches before the first measured one: imports, the store's first transaction, and the start of the process that ingests."""
BAR = 3000.0

environment = Environment("bench")


@environment.template()
async def one_line(number: int = 0):
    """Ask for one word."""
    answer = yield f"Say word {number}."
    yield 1.0 if answer == "word" else 0.0


async def agent(run):
    """Answer at once."""
    run.trace.content = "word"


async def framework(width: int) -> float:
    """Return recorded rollouts a second at `width` concurrent."""
    tasks = Taskset("bench", [one_line(number=number) for number in range(RUNS)])
    job = await Job.start(f"in-process rollouts x{width}")
    started = time.perf_counter()
    await tasks.run(agent, runtime=LocalRuntime(environment), job=job, max_concurrent=width)
    rate = RUNS / (time.perf_counter() - started)
    assert job.reward == 1.0, job.errors[:1]
    await job.finish()
    return rate


async def plain(width: int) -> float:
    """Return rollouts a second of the same template and agent in a loop written by hand."""
    numbers = iter(range(RUNS))

    async def template(number):
        answer = yield f"Say word {number}."
        yield 1.0 if answer == "word" else 0.0

    async def work():
        for number in numbers:
            generator = template(number)
            await generator.asend(None)
            rewards.append(await generator.asend("word"))
            await generator.aclose()
            await asyncio.sleep(0)

    rewards: list[float] = []
    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(width)))
    assert sum(rewards) == RUNS
    return RUNS / (time.perf_counter() - started)


async def main() -> int:
    """Print a line for each width; fail below the bar."""
    for _ in range(WARM_UP):
        await framework(WIDTHS[0])
    rates = []
    for width in WIDTHS:
        baseline, rate = await plain(width), await framework(width)
        rates.append(rate)
        report(
            f"recorded rollouts, {width} concurrent",
            rate,
            "/s",
            peer="by hand",
            peer_value=baseline,
        )
    held = report("slowest of the widths", min(rates), "/s", bar=BAR)
    report("fastest over slowest width", max(rates) / min(rates), "times")
    return int(not held)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["HUD_HOME"] = home
        os.environ.pop("HUD_API_URL", None)
        sys.exit(asyncio.run(main()))
