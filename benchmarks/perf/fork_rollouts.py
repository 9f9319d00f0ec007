"""Isolated rollouts a second: a one-line template, an agent that does nothing, a process for each, recorded.

Bar: 0.5 of bare forks: `os.fork` of a process as large as the warm server, with one round trip over a pipe, one
after another; no environment, no protocol, no limits and no record. Both take turns, so that a busy machine is busy
for both; the ratio is the median of the rounds'.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from records import report
from sizes import size

from hud.eval import ForkRuntime, Job, Task, Taskset

ROUNDS, RUNS = size((15, 400), (1, 2))
"""Rounds, and rollouts and forks of each."""
WIDTHS = size((8, 32), (1, 2))
BAR = 0.5
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


async def isolated(runtime: ForkRuntime, job: Job, width: int, runs: int = RUNS) -> float:
    """Return the seconds of `runs` recorded rollouts at `width` concurrent."""
    rows = [Task(env="bench", id="one_line", args={"number": number}) for number in range(runs)]
    started = time.perf_counter()
    await Taskset("bench", rows).run(agent, runtime=runtime, job=job, max_concurrent=width)
    seconds = time.perf_counter() - started
    assert job.reward == 1.0, job.errors[:1]
    return seconds


class BareForks:
    """A process that forks when it is asked to."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "bare"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def fork(self, number: int = RUNS) -> float:
        """Return the seconds of that many forks."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(number, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def serve_forks() -> None:
    """Fork as often as each line of the input says, and print the seconds."""
    import hud.eval.runtimes.zygote  # noqa: F401  as large as the warm server

    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        started = time.perf_counter()
        for _ in range(int(line)):
            fork_once()
        print(time.perf_counter() - started, flush=True)


def fork_once() -> None:
    """Fork, and have the child answer over a pipe and end."""
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


async def main(folder: Path) -> int:
    """Print a line for each width; fail below the bar."""
    source = folder / "env.py"
    source.write_text(SOURCE)
    runtime = ForkRuntime(source)
    bare = BareForks()
    job = await Job.start("isolated rollouts")
    await isolated(
        runtime, job, WIDTHS[0], runs=size(50, 2)
    )  # Imports, the warm server, the store.
    bare.fork(size(50, 2))
    ratios = []
    for width in WIDTHS:
        theirs, ours = [], []
        for _ in range(ROUNDS):
            theirs.append(await asyncio.to_thread(bare.fork))
            ours.append(await isolated(runtime, job, width))
        rate, peer = RUNS / statistics.median(ours), RUNS / statistics.median(theirs)
        ratios.append(
            statistics.median(one / other for one, other in zip(theirs, ours, strict=True))
        )
        report(
            f"isolated rollouts, {width} concurrent", rate, "/s", peer="bare forks", peer_value=peer
        )
    bare.close()
    await job.finish()
    await runtime.aclose()
    return int(
        not report("isolated rollouts over bare forks, best width", max(ratios), "times", bar=BAR)
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["bare"]:
        serve_forks()
        sys.exit(0)
    with tempfile.TemporaryDirectory() as home:
        os.environ["HUD_HOME"] = home
        os.environ.pop("HUD_API_URL", None)
        sys.exit(asyncio.run(main(Path(home))))
