"""512 environments at once on one machine, each in a process of its own and recorded, with a tool that takes 3 s.

Bar: the 99th percentile of the whole rollouts, from their start to their end, is under 8 s on two cores: the tool, and
the forks before and after it. The first batch is not measured: it starts the warm server.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from records import report
from sizes import size

from hud.eval import ForkRuntime, Job, Task, Taskset
from hud.trace import ToolCall

RUNS, TOOL_SECONDS = size((512, 3.0), (2, 0.1))
BAR = 8.0
SOURCE = '''
import asyncio

from hud.environment import Environment

environment = Environment("slow")


@environment.tool
async def work(seconds: float) -> str:
    """Take that long."""
    await asyncio.sleep(seconds)
    return "done"


@environment.template()
async def one_call(number: int = 0):
    """Ask for one call."""
    answer = yield f"Call the tool, number {number}."
    yield 1.0 if answer == "done" else 0.0
'''


class Player:
    """Calls the tool once, and keeps how long it took."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.calls: list[float] = []

    async def __call__(self, run) -> None:
        began = time.perf_counter()
        call = ToolCall(id="c0", name="work", arguments={"seconds": self.seconds})
        run.trace.content = (await run.call_tool(call)).text
        self.calls.append(time.perf_counter() - began)


def percentile(values: list[float], share: float) -> float:
    """Return the value that a share of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


async def batch(runtime: ForkRuntime, seconds: float) -> tuple[list[float], list[float], float]:
    """Play all at once; return the times of rollouts and of calls, and of the whole."""
    rows = [Task(env="slow", id="one_call", args={"number": number}) for number in range(RUNS)]
    player = Player(seconds)
    job = await Job.start("many environments")
    began = time.perf_counter()
    await Taskset("slow", rows).run(player, runtime=runtime, job=job, max_concurrent=RUNS)
    whole = time.perf_counter() - began
    assert job.reward == 1.0, job.errors[:1]
    await job.finish()
    return [run.seconds for run in job.runs], player.calls, whole


async def main(folder: Path) -> int:
    """Print the percentiles; fail below the bar."""
    source = folder / "env.py"
    source.write_text(SOURCE)
    runtime = ForkRuntime(source)
    await batch(runtime, 0.1)
    rollouts, calls, whole = await batch(runtime, TOOL_SECONDS)
    await runtime.aclose()
    report(f"{RUNS} tool calls at once, median", percentile(calls, 0.5), "s")
    report(f"{RUNS} tool calls at once, p99", percentile(calls, 0.99), "s")
    report(f"{RUNS} environments at once, median rollout", percentile(rollouts, 0.5), "s")
    report(f"{RUNS} environments at once, whole batch", whole, "s")
    p99 = percentile(rollouts, 0.99)
    held = report(
        f"{RUNS} environments at once, p99 rollout", p99, "s", bar=BAR, at_most=True,
        peer="the tool", peer_value=TOOL_SECONDS,
    )  # fmt: skip
    return int(not held)


if __name__ == "__main__":
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(files, min(most, 16 * RUNS)), most))
    with tempfile.TemporaryDirectory() as home:
        os.environ["HUD_HOME"] = home
        os.environ.pop("HUD_API_URL", None)
        sys.exit(asyncio.run(main(Path(home))))
