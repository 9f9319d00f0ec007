"""Isolated rollouts a second: a one-line template, an agent that does nothing, a process for each, recorded.

Bar: 200 a second on two cores. Beside it, measured in the same run: a bare `os.fork` of a process as large as
the warm server, with one round trip over a pipe, one after another. It has no environment, no protocol, no
limits and no record.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from records import report

from hud.eval import ForkRuntime, Job, Task, Taskset

RUNS = 1000
WIDTHS = (8, 32)
BAR = 200.0
BARE = [sys.executable, __file__, "bare"]
SOURCE = '''
from hud.environment import Environment

environment = Environment("bench")


@environment.template()
async def one_line(number: int = 0):
    """Ask for one word."""
    answer = yield f"Say word {number}."
    yield 1.0 if answer == "word" else 0.0
'''


async def agent(run):
    """Answer at once."""
    run.trace.content = "word"


async def isolated(runtime: ForkRuntime, width: int, runs: int = RUNS) -> float:
    """Return recorded rollouts a second at `width` concurrent."""
    rows = [Task(env="bench", id="one_line", args={"number": number}) for number in range(runs)]
    job = await Job.start(f"isolated rollouts x{width}")
    started = time.perf_counter()
    await Taskset("bench", rows).run(agent, runtime=runtime, job=job, max_concurrent=width)
    rate = runs / (time.perf_counter() - started)
    assert job.reward == 1.0, job.errors[:1]
    await job.finish()
    return rate


def bare_forks(runs: int = 300) -> float:
    """Return forks with a pipe round trip a second, from a process that has imported what the server has."""
    import hud.eval.runtimes.zygote  # noqa: F401  as large as the warm server

    gc.collect()
    gc.freeze()
    started = time.perf_counter()
    for _ in range(runs):
        ask, asked = os.pipe()
        answered, answer = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(answer, os.read(ask, 1))
            os._exit(0)
        os.write(asked, b"x")
        os.read(answered, 1)
        os.waitpid(pid, 0)
        for end in (ask, asked, answered, answer):
            os.close(end)
    return runs / (time.perf_counter() - started)


async def main(folder: Path) -> int:
    """Print a line for each width; fail below the bar."""
    source = folder / "env.py"
    source.write_text(SOURCE)
    runtime = ForkRuntime(source)
    await isolated(
        runtime, WIDTHS[0], runs=50
    )  # Imports, the warm server, the store's first transaction.
    rates = []
    for width in WIDTHS:
        bare = float(await asyncio.to_thread(subprocess.check_output, BARE))
        rate = await isolated(runtime, width)
        rates.append(rate)
        report(
            f"isolated rollouts, {width} concurrent", rate, "/s", peer="bare forks", peer_value=bare
        )
    await runtime.aclose()
    return int(not report("fastest of the widths", max(rates), "/s", bar=BAR))


if __name__ == "__main__":
    if sys.argv[1:] == ["bare"]:
        print(bare_forks())
        sys.exit(0)
    with tempfile.TemporaryDirectory() as home:
        os.environ["HUD_HOME"] = home
        os.environ.pop("HUD_API_URL", None)
        sys.exit(asyncio.run(main(Path(home))))
