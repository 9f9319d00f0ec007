"""`hud eval --resume` after the process was killed: interrupted runs go on from their snapshots."""

from __future__ import annotations

import asyncio
import os
import shutil

import pytest
from tests.eval.snapshots.test_snapshots import STEPS, Counter, environment

from hud.agents.tool_loop import ToolLoopAgent
from hud.agents.types import OpenAIChatConfig
from hud.errors import InfrastructureFault
from hud.eval import Job, StopSignal, Taskset
from hud.eval.snapshots.snapshot_folder import KEPT_DAYS, SnapshotFolder

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)


@pytest.fixture(autouse=True)
def every_step(monkeypatch):
    monkeypatch.setattr("hud.eval.snapshots.snapshots.COST_SHARE", 1.0)


def agent(model):
    return ToolLoopAgent(model, OpenAIChatConfig(model="counter", max_steps=20))


class Stopped(Counter):
    """A model that ends the evaluation before its fourth turn, without another word from the run."""

    def __init__(self):
        super().__init__()
        self.stop = StopSignal()

    async def complete(self, messages, tools, params, **context):
        if len(self.prompts) == 3:
            self.stop.request()
            self.stop.request()
            await asyncio.sleep(60)
        return await super().complete(messages, tools, params, **context)


async def test_a_killed_evaluation_goes_on_from_its_snapshots(tmp_path):
    _, _, count = environment()
    tasks = Taskset("counts", [count()])
    folder = SnapshotFolder(tmp_path / "snapshots", "j")
    model = Stopped()
    job = await tasks.run(agent(model), job=Job("j", "job"), snapshots=folder, stop=model.stop)
    assert (job.interrupted, job.runs) == (True, [])
    await folder.clear()
    (path,) = (tmp_path / "snapshots" / "j").iterdir()
    assert path.stat().st_mode & 0o077 == 0
    model = Counter()
    job = await tasks.run(agent(model), job=Job("j", "job"), snapshots=folder)
    assert (job.reward, len(model.prompts)) == (1.0, STEPS + 1 - 3)
    assert job.runs[0].trace.extra["snapshots"]["resumed_after_steps"] == [8]
    await folder.clear()
    assert list((tmp_path / "snapshots").iterdir()) == []


async def test_an_attempt_that_infrastructure_broke_goes_on_in_the_next(tmp_path):
    _, _, count = environment()

    class Breaking(Counter):
        broken = 0

        async def complete(self, messages, tools, params, **context):
            if len(self.prompts) == 3 and not self.broken:
                self.broken = 1
                raise InfrastructureFault("The provider is gone.")
            return await super().complete(messages, tools, params, **context)

    model = Breaking()
    folder = SnapshotFolder(tmp_path, "j")
    job = await Taskset("counts", [count()]).run(
        agent(model), job=Job("j", "job"), snapshots=folder
    )
    assert (job.reward, len(model.prompts)) == (1.0, STEPS + 1)


async def test_old_snapshots_are_deleted(tmp_path):
    folder = SnapshotFolder(tmp_path, "old")
    await folder.of("task", 0).keep(b"data")
    assert await folder.of("task", 0).last() == b"data"
    assert await folder.of("task", 1).last() is None
    await SnapshotFolder(tmp_path, "new").clear()
    assert (tmp_path / "old").exists()
    past = (tmp_path / "old").stat().st_mtime - 86_400 * (KEPT_DAYS + 1)
    os.utime(tmp_path / "old", (past, past))
    await SnapshotFolder(tmp_path, "new").clear()
    assert not (tmp_path / "old").exists()
