"""The store under a fleet: rollouts that end a second with 2,048 in flight, on SQLite and on PostgreSQL.

Everything that the server does for a rollout in the store, called as its routes call it, by threads as they run: 16 nodes with 128
rollouts each take, renew every 2 s (in the measure of the rollouts that are played), stream one batch of steps, and finish. Prints
rollouts a second, and CPU of this process for each. `--database URL` measures PostgreSQL; default: SQLite in a folder that is
removed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from records import report
from sizes import size

from hud.client.recording import MemoryRecorder
from hud.environment import Task
from hud.eval.grade import Grade
from hud.eval.run import Run
from hud.trace import AgentStep, Sample, Trace, new_id
from hud_platform.leases.leased_queue import Lease
from hud_platform.rollouts.brought_events import Brought, store_events
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store import Store
from hud_platform.store.tables import LOCAL_TEAM

NODES, EACH, ROUNDS = size((16, 128, 2), (2, 2, 1))
SPEC = {"env": "e", "task": "t", "slug": "t", "agent": {"type": "openai", "config": {"model": "m"}}}


def played(trace: str, job: str) -> bytes:
    """Return the journal lines of a rollout of four turns."""
    recorder = MemoryRecorder()
    record = Trace(trace_id=trace)
    run = Run(task=Task(env="e", id="t"), trace=record, recorder=recorder, job_id=job)
    recorder.run_started(run)
    for turn in range(4):
        ids = list(range(200))
        sample = Sample(prompt_token_ids=ids, output_token_ids=ids, output_logprobs=[-0.5] * 200)
        run.record(AgentStep(content=f"turn {turn} " * 40, sample=sample))
    run.grade = Grade(reward=1.0)
    run.trace.status = "completed"
    recorder.run_ended(run)
    return recorder.take()


def node(rollouts: Rollouts, name: str, job: str) -> int:
    """Play as one node until nothing waits; returns how many rollouts it played."""
    count = 0
    while taken := rollouts.take(name, EACH):
        held = [one.trace_id for one in taken]
        renewed = time.monotonic()
        for one in taken:
            if time.monotonic() - renewed > 2.0:
                rollouts.renew(name, held)
                renewed = time.monotonic()
            lease = Lease(one.trace_id, name, one.attempt)
            assert store_events(rollouts, [Brought(lease, played(one.trace_id, job))]) == [True]
        count += len(taken)
    return count


def measure(store: Store) -> tuple[float, float]:
    """Return rollouts a second, and milliseconds of CPU of each."""
    rollouts, job, total = Rollouts(store), new_id(), NODES * EACH
    for _ in range(total):
        rollouts.submit(LOCAL_TEAM, None, new_id(), job, SPEC)
    cpu, began = time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(NODES) as pool:
        counts = list(pool.map(lambda number: node(rollouts, f"n{number}", job), range(NODES)))
    assert sum(counts) == total, counts
    return total / (time.perf_counter() - began), 1000 * (time.process_time() - cpu) / total


def main() -> int:
    """Print a line for each round, and record the best."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database")
    url = parser.parse_args().database
    kind = "SQLite" if url is None else "PostgreSQL"
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder), url)
        found = [measure(store) for _ in range(ROUNDS)]
        store.close()
    for rate, cpu in found:
        print(f"{kind}: {rate:,.0f} rollouts/s, {cpu:.2f} ms CPU each")
    report(f"{kind}, rollouts ended, 2,048 in flight", max(rate for rate, _ in found), "/s")
    report(f"{kind}, CPU of a rollout in the store", min(cpu for _, cpu in found), "ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
