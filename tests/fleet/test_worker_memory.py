"""A worker that is short of memory: it begins nothing more, and always plays one rollout."""

from __future__ import annotations

import asyncio

from hud.client import Client
from hud.eval.concurrency.admission import MemoryGate
from hud.fleet.worker import Place, Worker


async def test_rollouts_begin_as_memory_allows(monkeypatch):
    free, release = 8 << 30, asyncio.Event()

    async def play(self, attempt):
        await release.wait()
        self._held.end(attempt)
        self._held.drop(attempt)

    monkeypatch.setattr(Worker, "_play", play)
    monkeypatch.setattr("hud.eval.concurrency.admission.READING_SECONDS", 0.0)
    worker = Worker(
        Client(api_url="http://nowhere.test"), "http://nowhere.test", 3, Place("w", "n", {})
    )
    worker._memory = MemoryGate(lambda: free)
    for number in range(4):
        worker._held.take({"trace_id": f"t{number}", "needs": {}})
    free = 0
    worker._begin()
    assert len(worker._held.playing) == 1
    free = 8 << 30
    worker._begin()
    assert (len(worker._held.playing), len(worker._held.waiting)) == (3, 1)
    free = 0
    release.set()
    for _ in range(8):
        await asyncio.sleep(0)
    # The last one began when nothing else was played.
    assert len(worker._held) == 0
