"""What rollouts leave behind: processes, mounts, temporary files, control groups, open files. Bar: nothing.

    python benchmarks/perf/leftovers.py [ROLLOUTS [KIND...]]

500 rollouts, half in this process and half forked; most have a workspace in which programs were left running,
every tenth a tool server that left some, a browser, or a desktop with a program on it. Of each three, one ends badly: the agent raises,
the environment's process is killed, or the job is cancelled while its agent waits. What a killed process could not
remove itself, the next rollout removes, so the last one ends well. The process that counts is the one that orphans
of all below it come to.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from records import report
from sizes import size

RUNS, BATCH, WIDTH = size((500, 30, 6), (4, 4, 2))
KINDS = ("shells", "servers", "pages", "desks")
GRACE_SECONDS = 20.0
SWEEP_SECONDS = 2.5
"""After which what a killed process left counts as left."""
_PR_SET_CHILD_SUBREAPER = 36

SERVER = """
import json, subprocess, sys
subprocess.Popen(["sleep", "1000"], start_new_session=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    known = {
        "initialize": {"protocolVersion": asked.get("params", {}).get("protocolVersion"),
                       "capabilities": {"tools": {}}, "serverInfo": {"name": "left", "version": "1"}},
        "tools/list": {"tools": [{"name": "look", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "seen"}]},
    }
    answer = {"jsonrpc": "2.0", "id": asked["id"], "result": known.get(asked["method"], {})}
    print(json.dumps(answer), flush=True)
"""
WORLD = """
import os, signal, sys
from hud import Environment
from hud.environment import WorkspaceLimits

def world(name):
    env = Environment(name)

    @env.tool
    def die() -> str:
        "End the environment's process."
        os.kill(os.getpid(), signal.SIGKILL)
        return "never"

    @env.tool
    def fail() -> str:
        "Raise."
        raise RuntimeError("broken on purpose")

    @env.template()
    async def play(number: int = 0):
        answer = yield "Leave something behind."
        yield float(answer == "done")

    return env

shells = world("shells")
shells.workspace(limits=WorkspaceLimits(memory_mb=128, disk_mb=16, scratch_mb=8))
servers = world("servers")
servers.connect_mcp([sys.executable, "-S", os.path.join(os.path.dirname(__file__), "server.py")])
pages = world("pages")
pages.browser()
desks = world("desks")
desks.desktop(programs=["xterm"], size=(320, 240))
"""
LEAVE = "(setsid sleep 1000 &) ; nohup sleep 1000 >/dev/null 2>&1 & mkfifo p; (cat p &) ; echo left > file"


class Player:
    """Leaves something running, and then ends as the number says."""

    def __init__(self, forked: bool) -> None:
        self.forked = forked
        self.waiting = asyncio.Semaphore(0)

    async def __call__(self, run) -> None:
        from hud.agents.native.bash import BashTool
        from hud.trace import ToolCall

        async def call(name: str, **arguments) -> None:
            await run.call_tool(ToolCall(id=name, name=name, arguments=arguments))

        number = run.task.args["number"]
        if run.task.env == "shells":
            run.attach(BashTool(await run.open("ssh")))
            await call("bash", command=LEAVE)
        elif run.task.env == "servers":
            await call("look")
        elif run.task.env == "pages":
            await run.open("cdp")
        else:
            await run.open("rfb")
        if ending(number) == "cancelled":
            self.waiting.release()
            await asyncio.sleep(1000)
        elif ending(number) == "raises":
            raise RuntimeError("the agent broke on purpose")
        elif ending(number) == "killed" and self.forked:
            await call("die")
        elif ending(number) == "killed":
            await call("fail")
            raise TimeoutError("the environment broke on purpose")
        run.trace.content = "done"


def ending(number: int) -> str:
    """How rollout `number` ends: two of three well."""
    return ("raises", "killed", "cancelled")[number // 3 % 3] if number % 3 == 0 else "done"


def kind(number: int, kinds: Sequence[str]) -> str:
    """Which environment rollout `number` plays in."""
    wanted = {4: "servers", 7: "desks", 9: "pages"}.get(number % 10, "shells")
    return wanted if wanted in kinds else kinds[0]


async def work(folder: Path, runs: int, kinds: Sequence[str], size: int = BATCH) -> dict[str, int]:
    """Play all, `size` here, `size` forked; return how they ended."""
    from hud.environment import load_environment
    from hud.eval import ForkRuntime, LocalRuntime

    ended = {"done": 0, "failed": 0, "cancelled": 0}
    runtimes: dict[tuple[str, bool], Any] = {}
    for name in kinds:
        source = f"{folder / 'world.py'}:{name}"
        runtimes[name, True] = ForkRuntime(source)
        runtimes[name, False] = LocalRuntime(load_environment(source))
    for first in range(0, runs, size):
        forked = first // size % 2 == 1
        for name in kinds:
            numbers = [n for n in range(first, min(first + size, runs)) if kind(n, kinds) == name]
            await batch(numbers, name, runtimes[name, forked], forked, ended)
    await asyncio.sleep(SWEEP_SECONDS)
    for (name, forked), runtime in runtimes.items():
        if forked:
            await batch([1], name, runtime, forked, ended)
            await runtime.aclose()
    return ended


async def batch(numbers, name, runtime, forked, ended) -> None:
    """Play some rollouts; cancel those that are to be, once their agents wait."""
    from hud.eval import Task, Taskset

    player = Player(forked)

    def tasks(wanted: list[int]) -> Taskset:
        return Taskset("left", [Task(env=name, id="play", args={"number": n}) for n in wanted])

    lost = [n for n in numbers if ending(n) == "cancelled"]
    kept = [n for n in numbers if ending(n) != "cancelled"]
    width = 2 if name == "pages" else WIDTH
    if kept:
        job = await tasks(kept).run(player, runtime=runtime, max_concurrent=width)
        for run in job.runs:
            ended["failed" if run.failed else "done"] += 1
    if lost:
        playing = asyncio.ensure_future(
            tasks(lost).run(player, runtime=runtime, max_concurrent=len(lost))
        )
        for _ in lost:
            waiting = asyncio.ensure_future(player.waiting.acquire())
            await asyncio.wait([waiting, playing], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        ended["cancelled"] += len(lost)


def worker(folder: Path, runs: int, kinds: Sequence[str]) -> None:
    """Play, in a process whose end is waited for."""
    asyncio.run(
        work(folder, 4, kinds, 2)
    )  # What is opened once, and stays, is nothing left behind.
    before = open_files()
    ended = asyncio.run(work(folder, runs, kinds, min(BATCH, runs // 2)))
    gc.collect()
    left = open_files()
    for name, number in (left - before).items():
        print("left open:", number, name)
    print(json.dumps({"ended": ended, "open files": max(0, left.total() - before.total())}))


def open_files() -> Counter[str]:
    """Return what this process has open, by kind or name."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found[os.readlink(f"/proc/self/fd/{number}").split("[")[0]] += 1
    return found


def groups() -> set[str]:
    """Return the control groups of workspaces whose makers are gone."""
    found = set()
    for path in Path("/sys/fs/cgroup").rglob("hud-workspace-*"):
        if not Path(f"/proc/{path.name.split('-')[2]}").exists():
            found.add(str(path))
    return found


def children() -> list[int]:
    """Return the processes that came to us."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return [int(pid) for pid in listed.split()]


def count(runs: int, kinds: Sequence[str]) -> int:
    """Play in a process below this one, and count what it leaves; returns how many things."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").count("\n")
    groups_before = groups()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "world")
        temporary = Path(home, "tmp")
        folder.mkdir()
        temporary.mkdir()
        os.chmod(
            home, 0o755
        )  # What is shown on a desktop belongs to another user, where we are root.
        (folder / "world.py").write_text(WORLD, encoding="utf-8")
        (folder / "server.py").write_text(SERVER, encoding="utf-8")
        os.environ.update(HUD_HOME=str(Path(home, "hud")), TMPDIR=str(temporary))
        os.environ.pop("HUD_API_URL", None)
        started = time.perf_counter()
        played = subprocess.run(
            [sys.executable, __file__, "worker", str(folder), str(runs), *kinds],
            stdout=subprocess.PIPE,
            check=False,
        )
        seconds = time.perf_counter() - started
        if played.returncode != 0:
            print(f"the rollouts themselves failed: {played.returncode}")
            return 1
        print(
            *played.stdout.decode().splitlines()[:-1],
            sep="\n",
            end="\n" * (played.stdout.count(b"\n") > 1),
        )
        told = json.loads(played.stdout.splitlines()[-1])
        deadline = time.monotonic() + GRACE_SECONDS
        while children() and time.monotonic() < deadline:
            time.sleep(0.1)
            while children() and os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = {
            "processes": len(children()),
            "mounts": Path("/proc/self/mountinfo").read_text(encoding="utf-8").count("\n") - mounts,
            "temporary files": len(list(temporary.iterdir())),
            "control groups": len(groups() - groups_before),
            "open files": told["open files"],
        }
        for path in temporary.rglob("*"):
            print("left:", path)
        for pid in children():
            print("left:", Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:200])
            os.kill(pid, signal.SIGKILL)
    print(f"  {seconds:.0f} s: {told['ended']}; left behind: {left}")
    report(f"left behind by {runs} rollouts", sum(left.values()), "things", bar=0, at_most=True)
    return sum(left.values())


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
        sys.exit(0)
    if shutil.which("bwrap") is None:
        sys.exit("This needs bubblewrap: run scripts/setup-worlds.")
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    sys.exit(min(1, count(wanted, sys.argv[2:] or KINDS)))
