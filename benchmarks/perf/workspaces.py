"""What a workspace costs: bringing one up, a command in it over SSH, a step's look at its files, taking it down.

Bar: at most twice the time of bubblewrap alone until the first command. It is measured in turns, with the same mounts
and limits; its only program is `true`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack

from records import report
from sizes import size

from hud import Environment
from hud.capabilities.shell.ssh import SSHClient

RUNS, TURN = size((40, 10), (2, 1))
BAR = 2.0
WIDTH, COMMANDS, FILES = size((8, 20, 2000), (1, 1, 10))

environment = Environment("bench")
shell = environment.workspace()


async def one(times: dict[str, list[float]] | None = None) -> None:
    """Bring a workspace up, use it once, take it down."""
    began = time.perf_counter()
    async with environment.run() as run:
        up = time.perf_counter()
        client = await SSHClient.connect(run.parts.of(shell).capability)
        assert (await client.run("echo here")).stdout == "here\n"
        used = time.perf_counter()
        await client.close()
    if times is not None:
        times["up"].append(up - began)
        times["connected, first command"].append(used - up)
        times["down"].append(time.perf_counter() - used)


async def steps() -> dict[str, list[float]]:
    """Return the times of commands, and of looks at some thousand files that did not change."""
    times: dict[str, list[float]] = {"a command": [], f"a look at {FILES:,} files": []}
    async with environment.run() as run:
        opened = run.parts.of(shell)
        client = await SSHClient.connect(opened.capability)
        await client.run(f"for i in $(seq {FILES}); do echo $i > f$i; done")
        await opened.observe()
        for _ in range(COMMANDS):
            began = time.perf_counter()
            await client.run("true")
            times["a command"].append(time.perf_counter() - began)
            began = time.perf_counter()
            await opened.observe()
            times[f"a look at {FILES:,} files"].append(time.perf_counter() - began)
        await client.close()
    return times


def bare() -> float:
    """Return the seconds that bubblewrap alone takes."""
    from hud.environment.workspace.sandbox.bubblewrap import command

    with ExitStack() as stack:
        planned = command(shell.plan, 0, stack, groups=())
    arguments = planned.arguments[planned.arguments.index("--unshare-all") - 1 :]
    for option in ("--file", "--seccomp"):  # What those descriptors held is gone.
        while option in arguments:
            at = arguments.index(option)
            size = 3 if option == "--file" else 2
            start = at - 2 if option == "--file" else at
            del arguments[start : at + size]
    arguments = [*arguments[: arguments.index("--")], "--", "/bin/true"]
    whose = {} if planned.user is None else {"user": planned.user, "group": planned.user}
    began = time.perf_counter()
    subprocess.run(arguments, check=True, cwd="/", env={}, **whose)
    return time.perf_counter() - began


async def main() -> None:
    """Print medians, and the rate of whole workspaces."""
    await one()
    bares: list[float] = []
    times: dict[str, list[float]] = {"up": [], "connected, first command": [], "down": []}
    for _ in range(RUNS // TURN):
        bares += [bare() for _ in range(TURN)]
        for _ in range(TURN):
            await one(times)
    alone = statistics.median(bares)
    times |= await steps()
    for name, taken in times.items():
        report(f"a workspace: {name}, median", statistics.median(taken) * 1000, "ms")
    first = sum(statistics.median(times[name]) for name in list(times)[:2])
    report(
        "a workspace until its first command over bubblewrap",
        first / alone,
        "times",
        bar=BAR,
        at_most=True,
    )
    whole = first + statistics.median(times["down"])
    report("a whole workspace", whole * 1000, "ms", peer="bubblewrap", peer_value=alone * 1000)
    before, cpu = time.perf_counter(), os.times()
    for _ in range(RUNS // WIDTH):
        await asyncio.gather(*(one() for _ in range(WIDTH)))
    seconds, after = time.perf_counter() - before, os.times()
    busy = sum(after[:4]) - sum(cpu[:4])
    report(f"workspaces, {WIDTH} at a time", RUNS / seconds, "/s")
    report("processor time of a workspace", busy / RUNS * 1000, "ms")


if __name__ == "__main__":
    if shutil.which("bwrap") is None:
        sys.exit("This needs bubblewrap: run scripts/setup-worlds.")
    asyncio.run(main())
