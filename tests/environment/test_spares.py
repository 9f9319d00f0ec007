"""Spares: what starts before a run needs it is used by one run at most, and is closed if no run comes."""

import asyncio
import shutil

import pytest

from hud.capabilities.shell.ssh import SSHClient
from hud.environment import Environment, WorkspaceLimits, spares
from hud.environment.current_run import entered
from hud.environment.spares import Spares
from hud.errors import UsageError

LIMIT_SECONDS = 30.0


class Place:
    """Counts what is started, and what is closed."""

    def __init__(self):
        self.started, self.closed, self.broken = 0, [], set()
        self.may_start = asyncio.Event()
        self.may_start.set()

    async def start(self):
        self.started += 1
        number = self.started
        await self.may_start.wait()
        if number in self.broken:
            raise OSError(f"{number} does not start")
        return number

    async def close(self, number):
        self.closed.append(number)

    def spares(self, number=None):
        return Spares(self.start, self.close, lambda place: -place not in self.broken, number)


async def until(condition):
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - nothing is notified
            await asyncio.sleep(0.005)


async def test_runs_that_follow_each_other_find_theirs_started_and_share_none():
    place = Place()
    kept = place.spares()
    taken = [await kept.take()]
    assert place.started == 1, "a single run starts nothing for others"
    taken.append(await kept.take())
    await until(lambda: place.started == 4)
    taken += await asyncio.gather(*(kept.take() for _ in range(5)))
    assert len(set(taken)) == 7
    assert {3, 4} < set(taken)


async def test_a_declared_number_is_kept_up_from_the_first_run_until_it_is_closed(monkeypatch):
    monkeypatch.setattr(spares, "KEPT_SECONDS", 0.01)
    place = Place()
    kept = place.spares(3)
    taken = [await kept.take()]
    await until(lambda: place.started == 4)
    await asyncio.sleep(0.05)
    assert place.closed == []
    taken.append(await kept.take())
    await until(lambda: place.started == 5)
    await kept.close()
    assert set(place.closed) == {1, 2, 3, 4, 5} - set(taken)


async def test_a_spare_starts_after_its_run_s_first_command_unless_a_run_waits_for_it(monkeypatch):
    monkeypatch.setattr(spares, "PAUSE_SECONDS", 600.0)
    place = Place()
    kept = place.spares(2)
    await kept.take()
    await asyncio.sleep(0.02)
    assert place.started == 1
    assert await kept.take() == 2
    assert place.started == 2
    await kept.close()


async def test_no_spares_are_started_where_none_are_wanted():
    place = Place()
    kept = place.spares(0)
    assert [await kept.take() for _ in range(3)] == [1, 2, 3]
    assert place.started == 3
    with pytest.raises(UsageError, match="at least 0"):
        place.spares(-1)


async def test_one_that_no_run_takes_is_closed(monkeypatch):
    monkeypatch.setattr(spares, "KEPT_SECONDS", 0.05)
    place = Place()
    kept = place.spares()
    taken = [await kept.take(), await kept.take()]
    await until(lambda: len(place.closed) == 2)
    assert set(place.closed).isdisjoint(taken)
    await asyncio.sleep(0.1)
    taken.append(await kept.take())
    assert set(place.closed).isdisjoint(taken)
    assert place.started == 5, "runs that are far apart start nothing for others"


def test_none_outlasts_its_event_loop():
    async def play():
        place = Place()
        kept = place.spares()
        taken = {await kept.take(), await kept.take()}
        await until(lambda: place.started == 4)
        return place, taken

    place, taken = asyncio.run(play())
    assert set(place.closed) == {1, 2, 3, 4} - taken


async def test_one_that_broke_meanwhile_is_closed_and_replaced():
    place = Place()
    place.broken = {-3, 4}
    kept = place.spares()
    await kept.take()
    await kept.take()
    await until(lambda: place.started == 4)
    assert await kept.take() == 5
    assert place.closed == [3]


async def test_a_run_that_is_cancelled_while_it_waits_for_one_leaves_none():
    place = Place()
    kept = place.spares()
    await kept.take()
    await kept.take()
    await until(lambda: place.started == 4)
    taken = [await kept.take(), await kept.take()]
    place.may_start.clear()
    waiting = [asyncio.create_task(kept.take()) for _ in range(2)]
    await asyncio.sleep(0.01)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    assert all(each.cancelled() for each in waiting)
    place.may_start.set()
    taken.append(await kept.take())
    assert len(set(taken)) == 3
    assert set(place.closed).isdisjoint(taken)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bubblewrap: setup-worlds")
async def test_workspaces_that_follow_each_other_are_new_ones():
    env = Environment("places")
    shell = env.workspace(
        limits=WorkspaceLimits(memory_mb=128, processes=32, disk_mb=8, scratch_mb=8)
    )
    seen = []
    for _ in range(6):
        async with env.run() as run:
            with entered(run):
                found = await shell.bash("find . /tmp -mindepth 1; cat /proc/[0-9]*/comm")
                assert "file" not in found.stdout
                assert "sleep" not in found.stdout
                await shell.bash("touch file /tmp/file")
                client = await SSHClient.connect(shell.opened.capability)
                await client.run("sleep 100 >/dev/null 2>&1 &")
                await client.close()
                seen.append(shell.opened.sandbox)
        assert seen[-1].problem is not None
    assert len(set(map(id, seen))) == 6
