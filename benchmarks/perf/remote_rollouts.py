"""Remote rollouts a second: submitted, queued, taken by a worker process, played, recorded and brought back.

A one-line template, and an agent that answers at once: the worker is the real one with that agent in place of the one
that would ask a model. Beside it, in turn in the same run: the same rollouts by `ForkRuntime` in one process, recorded
in a store of its own. Prints both and the ratio, as medians of the rounds.
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
from pathlib import Path

from records import report

RUNS, ROUNDS, WIDTH = 300, 3, 16
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
    """Run a worker whose agents are all silent."""
    import hud.fleet.rollout_worker as fleet

    fleet.player_of = lambda given, gateway_url: Silent()
    sys.argv[1:] = ["--rollouts", str(WIDTH)]
    fleet.main()


async def remote(client) -> float:
    """Return rollouts a second from the first submission to the last result."""
    from hud.trace import dashed, new_id

    job = new_id()
    at_once = asyncio.Semaphore(WIDTH)

    async def submit(number: int) -> None:
        body = {
            "trace_id": dashed(new_id()),
            "job_id": dashed(job),
            "env": "bench",
            "task": "one_line",
            "args": {"number": number},
            "agent": {"type": "openai_compatible", "config": {"model": "none"}},
        }
        async with at_once:
            await client.post("/v2/rollouts/submit", body)

    started = time.perf_counter()
    await asyncio.gather(*(submit(number) for number in range(RUNS)))
    submitted = time.perf_counter() - started
    found = {"graded": 0}
    while found["graded"] < RUNS:
        await asyncio.sleep(0.05)
        found = await client.get(f"/v2/jobs/{job}")
    rate = RUNS / (time.perf_counter() - started)
    assert (found["runs"], found["reward"]) == (RUNS, 1.0), found
    print(f"      {RUNS / submitted:>5,.0f} submitted/s, {rate:>5,.0f} played/s")
    return rate


async def local(runtime) -> float:
    """Return rollouts a second by `ForkRuntime`."""
    from hud.eval import Job, Task, Taskset

    rows = [Task(env="bench", id="one_line", args={"number": number}) for number in range(RUNS)]
    job = await Job.start("local")
    started = time.perf_counter()
    await Taskset("bench", rows).run(Silent(), runtime=runtime, job=job, max_concurrent=WIDTH)
    rate = RUNS / (time.perf_counter() - started)
    assert job.reward == 1.0, job.errors[:1]
    await job.finish()
    return rate


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


def start_worker(home: Path, url: str) -> subprocess.Popen[bytes]:
    """Start a worker as the server does, with a pass of the server's."""
    from hud.platform.access import Identity
    from hud.platform.access.passes import Passes
    from hud.platform.store.tables import LOCAL_TEAM

    key = Passes(home).make(Identity(team_id=LOCAL_TEAM, scopes=frozenset(), worker=True), 3600.0)
    return subprocess.Popen(
        [sys.executable, __file__, "worker"],
        env={**os.environ, "HUD_HOME": str(home), "HUD_API_URL": url, "HUD_API_KEY": key},
        stdin=subprocess.PIPE,
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
    player = start_worker(folder / "home", url)
    runtime = ForkRuntime(source / "env.py")
    try:
        client = Client(api_url=url, api_key=key, home=folder)
        await deploy(client, source)
        rates: list[tuple[float, float]] = []
        for number in range(ROUNDS + 1):
            there, here = await remote(client), await local(runtime)
            if number:  # The first warms everything up.
                rates.append((there, here))
            print(
                f"{number:>3}: remote {there:>5,.0f}/s, local {here:>5,.0f}/s, {there / here:.2f}"
            )
    finally:
        await runtime.aclose()
        player.terminate()
        player.wait()
        server.terminate()
        server.wait()
    there, here = (statistics.median(column) for column in zip(*rates, strict=True))
    what = f"remote rollouts, {WIDTH} at a time, one worker"
    report(what, there, "/s", peer="local ForkRuntime", peer_value=here)
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        worker()
    else:
        os.environ.update(OMP_NUM_THREADS="1")
        for name in [name for name in os.environ if name.startswith("HUD_")]:
            del os.environ[name]
        with tempfile.TemporaryDirectory() as home:
            sys.exit(asyncio.run(main(Path(home))))
