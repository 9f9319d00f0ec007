"""Remote rollouts: rate with one worker and with four, and CPU time beyond local ones.

A one-line template, and an agent that answers at once: a worker is `hud fleet join` with that agent in place of the one
that would ask a model; it fetches the build. By turns: the rollouts of one worker, those of four on the same machine, and
those of `ForkRuntime` in one process, recorded in a store of its own. Rates count from the first submission to the last end.
CPU counts the workers' and the server's process, its share in submitting included; the environments' own processes are the
same on all sides. Prints medians of the rounds.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil
from records import report
from sizes import size

RUNS, ROUNDS, WIDTH, WORKERS = size((800, 5, 16, 4), (8, 1, 2, 2))
POLL_SECONDS = 1.0
"""Between two looks at the job: each is work of the server that no rollout causes."""
WORKER_MS, SERVER_MS = 2.0, 1.0
"""Bars: CPU of a remote rollout beyond a local one."""
RATIO = 0.7
"""Bar: rate of four workers over that of `ForkRuntime`."""
SUBMITTED_AT_ONCE = 200
SOURCE = '''
from hud.environment import Environment

environment = Environment("bench")


@environment.template()
async def one_line(number: int = 0):
    """Ask for one word."""
    answer = yield f"Say word {number}."
    yield 1.0 if answer == "word" else 0.0
'''


class Silent:
    """Answers at once."""

    model_name = None

    async def __call__(self, run):
        run.trace.content = "word"

    async def aclose(self):
        pass


def worker() -> None:
    """Join with a worker whose agents are all silent."""
    import hud.fleet.worker as fleet
    from hud.cli.main import main as command

    fleet.player_of = lambda given, gateway_url: Silent()
    command(
        [
            "fleet",
            "join",
            os.environ["HUD_API_URL"],
            "--rollouts",
            str(WIDTH),
            "--name",
            os.environ["NODE"],
        ]
    )


@dataclass(frozen=True)
class Cost:
    """One round: rollouts a second, and milliseconds of CPU of one rollout in the player's and the server's process."""

    rate: float
    player: float
    server: float = 0.0


def cpu_ms(process: psutil.Process) -> float:
    """Return the CPU time of one process, without its children."""
    times = process.cpu_times()
    return 1000 * (times.user + times.system)


async def remote(
    client, server: psutil.Process, players: dict[str, psutil.Process], idle: list[str]
) -> Cost:
    """Play a round remotely, by these workers; the idle ones take nothing."""
    from hud.trace import dashed, new_id

    job = new_id()
    bodies = [
        {
            "trace_id": dashed(new_id()),
            "job_id": dashed(job),
            "env": "bench",
            "task": "one_line",
            "args": {"number": number},
            "agent": {"type": "openai_compatible", "config": {"model": "none"}},
        }
        for number in range(RUNS)
    ]
    for node in players:
        await client.post(f"/v2/fleet-nodes/{node}/open")
    for node in idle:
        await client.post(f"/v2/fleet-nodes/{node}/cordon")
    await asyncio.sleep(6)  # A request that was open keeps the state that it began with.
    before = cpu_ms(server), sum(map(cpu_ms, players.values()))
    started = time.time()
    for first in range(0, RUNS, SUBMITTED_AT_ONCE):
        some = {"rollouts": bodies[first : first + SUBMITTED_AT_ONCE]}
        await client.post("/v2/rollouts/submit_many", some)
    submitted = time.time() - started
    found = {"graded": 0}
    while found["graded"] < RUNS:
        await asyncio.sleep(POLL_SECONDS)
        found = await client.get(f"/v2/jobs/{job}")
    used = cpu_ms(server) - before[0], sum(map(cpu_ms, players.values())) - before[1]
    runs = await client.get(f"/v2/jobs/{job}/traces", params={"limit": RUNS})
    ends = [datetime.fromisoformat(run["ended_at"]).timestamp() for run in runs["items"]]
    rate = RUNS / (max(ends) - started)
    assert (found["runs"], found["reward"]) == (RUNS, 1.0), found
    print(f"      {RUNS / submitted:>5,.0f} submitted/s, {rate:>5,.0f} played/s")
    return Cost(rate, used[1] / RUNS, used[0] / RUNS)


async def local(runtime) -> Cost:
    """Play a round by `ForkRuntime`."""
    from hud.eval import Job, Task, Taskset

    rows = [Task(env="bench", id="one_line", args={"number": number}) for number in range(RUNS)]
    job = await Job.start("local")
    this = psutil.Process()
    before, started = cpu_ms(this), time.perf_counter()
    await Taskset("bench", rows).run(Silent(), runtime=runtime, job=job, max_concurrent=WIDTH)
    rate = RUNS / (time.perf_counter() - started)
    used = cpu_ms(this) - before
    assert job.reward == 1.0, job.errors[:1]
    await job.finish()
    return Cost(rate, used / RUNS)


async def deploy(client, source: Path) -> None:
    """Register the environment."""
    import httpx

    from hud.client.archives import pack

    begun = await client.post("/v2/builds/upload-url")
    archive = io.BytesIO()
    pack(source, archive)
    async with httpx.AsyncClient() as plain:
        answer = await plain.put(begun["upload_url"], content=archive.getvalue())
        answer.raise_for_status()
    made = await client.post("/v2/builds/trigger", {"build_id": begun["build_id"], "name": "bench"})
    while (state := (await client.get(f"/v2/builds/{made['id']}/status"))["status"]) != "SUCCEEDED":
        assert state not in ("FAILED", "CANCELLED"), state
        await asyncio.sleep(0.1)


def serve(home: Path) -> tuple[subprocess.Popen[str], str, str]:
    """Start a server without workers; return it, its URL and a key."""
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "hud.cli.main", "up", "--port", "0", "--workers", "0"],
        env={**os.environ, "HUD_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    said = ""
    while "Stop: Ctrl-C" not in said:
        line = server.stdout.readline()
        assert line, said
        said += line
    found = [re.search(rf"{name}=(\S+)", said) for name in ("HUD_API_URL", "HUD_API_KEY")]
    assert all(found), said
    return server, found[0][1], found[1][1]


def start_worker(home: Path, url: str, key: str) -> subprocess.Popen[bytes]:
    """Join with a pass, under the name of a folder of its own."""
    home.mkdir()
    own = {"HUD_HOME": str(home), "HUD_API_URL": url, "HUD_API_KEY": key, "NODE": home.name}
    return subprocess.Popen(
        [sys.executable, __file__, "worker"],
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
    )


async def main(folder: Path) -> int:
    """Print a line for each round, and the medians."""
    from hud.client import Client
    from hud.eval import ForkRuntime

    source = folder / "source"
    source.mkdir()
    (source / "env.py").write_text(SOURCE)
    os.environ["HUD_HOME"] = str(folder / "local")
    server, url, key = serve(folder / "home")
    runtime = ForkRuntime(source / "env.py")
    client = Client(api_url=url, api_key=key, home=folder)
    made = await client.post("/v2/fleet-passes", {"name": "bench"})
    names = [f"node{number}" for number in range(WORKERS)]
    players = {name: start_worker(folder / name, url, made["key"]) for name in names}
    processes = {name: psutil.Process(player.pid) for name, player in players.items()}
    alone = {names[0]: processes[names[0]]}
    try:
        await deploy(client, source)
        while (await client.get("/v2/fleet-nodes"))["total"] < WORKERS:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        rounds: list[tuple[Cost, Cost, Cost]] = []
        for number in range(ROUNDS + 1):
            many = await remote(client, psutil.Process(server.pid), processes, [])
            here = await local(runtime)
            one = await remote(client, psutil.Process(server.pid), alone, names[1:])
            if number:  # The first warms everything up.
                rounds.append((one, many, here))
            print(f"{number:>3}: one worker {one}, {WORKERS} workers {many}, local {here}")
    finally:
        await runtime.aclose()
        for player in players.values():
            player.terminate()
        for player in players.values():
            player.wait()
        server.terminate()
        server.wait()
    return 0 if told(rounds) else 1


def told(rounds: list[tuple[Cost, Cost, Cost]]) -> bool:
    """Report the medians of the rounds; returns whether the bars are held."""
    one, many, base = (
        statistics.median(cost.rate for cost in side) for side in zip(*rounds, strict=True)
    )
    what = f"remote rollouts, {WIDTH} at a time"
    report(f"{what}, one worker", one, "/s", peer="local ForkRuntime", peer_value=base)
    held = report(
        f"{what}, {WORKERS} workers",
        many,
        "/s",
        peer="local ForkRuntime",
        peer_value=base,
        bar=RATIO * base,
    )
    player_ms = statistics.median(there.player - here.player for there, _, here in rounds)
    server_ms = statistics.median(there.server for there, _, _ in rounds)
    what = "remote rollout, CPU of the worker beyond a local one"
    held &= report(what, player_ms, "ms", bar=WORKER_MS, at_most=True)
    what = "remote rollout, CPU of the server, its submission included"
    held &= report(what, server_ms, "ms", bar=SERVER_MS, at_most=True)
    return held


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        worker()
    else:
        os.environ.update(OMP_NUM_THREADS="1")
        for name in [name for name in os.environ if name.startswith("HUD_")]:
            del os.environ[name]
        with tempfile.TemporaryDirectory() as home:
            sys.exit(asyncio.run(main(Path(home))))
