"""In-process rollouts a second: a one-line template, an agent that does nothing, everything recorded.

Bar: 3,000 a second on two cores, flat from 32 to 1,000 concurrent. The plain loop beside it is the same
template and agent driven by hand, with no runs, no traces, no limits and no recording.

    inprocess_rollouts.py --against FOLDER [--bar 2]     this checkout and another one, such as a `git worktree`, in turn
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from records import commit_of, report
from sizes import size

from hud.environment import Environment
from hud.eval import Job, LocalRuntime, Taskset

RUNS, WIDTHS = size((3000, (32, 256, 1000)), (4, (1, 2)))
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


async def rates() -> list[float]:
    """Return recorded rollouts a second at each of the widths."""
    for _ in range(WARM_UP):
        await framework(WIDTHS[0])
    return [await framework(width) for width in WIDTHS]


async def main() -> int:
    """Print a line for each width; fail below the bar."""
    baselines = [await plain(width) for width in WIDTHS]
    found = await rates()
    for width, baseline, rate in zip(WIDTHS, baselines, found, strict=True):
        report(
            f"recorded rollouts, {width} concurrent",
            rate,
            "/s",
            peer="by hand",
            peer_value=baseline,
        )
    held = report("slowest of the widths", min(found), "/s", bar=BAR)
    report("fastest over slowest width", max(found) / min(found), "times")
    return int(not held)


def against(folder: Path, rounds: int, bar: float | None) -> int:
    """Print the medians of both checkouts for each width; fail below `bar` times the other's."""
    sides = (folder, Path(__file__).parents[2])
    found: list[list[list[float]]] = [[], []]
    for _ in range(rounds):
        for side, values in zip(sides, found, strict=True):
            done = subprocess.run(
                [sys.executable, __file__, "--rates"],
                env={**os.environ, "PYTHONPATH": str(side / "packages" / "openhud")},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            values.append(json.loads(done.stdout))
    commit = commit_of(folder)
    held = []
    for place, width in enumerate(WIDTHS):
        theirs, ours = (statistics.median(one[place] for one in values) for values in found)
        held.append(
            report(
                f"recorded rollouts, {width} concurrent, against {commit}",
                ours,
                "/s",
                bar=None if bar is None else bar * theirs,
                peer=commit,
                peer_value=theirs,
            )
        )
    return int(not all(held))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path)
    parser.add_argument("--bar", type=float)
    parser.add_argument("--rounds", type=int, default=size(7, 1))
    parser.add_argument("--rates", action="store_true", help="print the rates alone")
    given = parser.parse_args()
    if given.against is not None:
        sys.exit(against(given.against, given.rounds, given.bar))
    with tempfile.TemporaryDirectory() as home:
        os.environ["HUD_HOME"] = home
        os.environ.pop("HUD_API_URL", None)
        if given.rates:
            print(json.dumps(asyncio.run(rates())))
        else:
            sys.exit(asyncio.run(main()))
