"""Joining a fleet: seconds from the start of `hud fleet join` in an empty folder to the end of the first rollout.

The server has the build, of a source and 64 MiB of data that do not compress, packed already; the agent is that of
`remote_rollouts.py`, which answers at once. Prints what the worker prints, and the median of the rounds.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from records import report
from remote_rollouts import SOURCE, deploy, serve, start_worker
from sizes import size

ROUNDS, DATA_BYTES = size((4, 64 << 20), (2, 1 << 10))
MOST_SECONDS = 30.0


async def join(client, url: str, home: Path) -> float:
    """Submit a rollout, join with an empty folder, and return the seconds until the rollout is graded."""
    from hud.trace import dashed, new_id

    trace = new_id()
    body = {
        "trace_id": dashed(trace),
        "env": "bench",
        "task": "one_line",
        "agent": {"type": "openai_compatible", "config": {"model": "none"}},
    }
    await client.post("/v2/rollouts/submit", body)
    made = await client.post("/v2/fleet-passes", {"name": home.name})
    began = time.perf_counter()
    worker = start_worker(home, url, made["key"])
    try:
        while (await client.get(f"/v2/trace/{trace}"))["status"] == "running":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        took = time.perf_counter() - began
    finally:
        worker.terminate()
        worker.wait()
    assert (await client.get(f"/v2/trace/{trace}"))["reward"] == 1.0
    return took


async def main(folder: Path) -> int:
    """Print a line for each round, and the median of all but the first, which has the build packed."""
    from hud.client import Client

    source = folder / "source"
    source.mkdir()
    (source / "env.py").write_text(SOURCE)
    (source / "data.bin").write_bytes(os.urandom(DATA_BYTES))
    server, url, key = serve(folder / "home")
    client = Client(api_url=url, api_key=key, home=folder)
    try:
        await deploy(client, source)
        found = []
        for number in range(ROUNDS):
            found.append(await join(client, url, folder / f"node-{number}"))
            print(f"{number:>3}: {found[-1]:.1f} s", flush=True)
    finally:
        server.terminate()
        server.wait()
    seconds = statistics.median(found[1:])
    held = report(
        "from joining in an empty folder to the first rollout's end, a build of 64 MiB",
        seconds,
        "s",
        bar=MOST_SECONDS,
        at_most=True,
    )
    return 0 if held else 1


if __name__ == "__main__":
    os.environ.update(OMP_NUM_THREADS="1")
    for name in [name for name in os.environ if name.startswith("HUD_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as home:
        sys.exit(asyncio.run(main(Path(home))))
