"""A disk that is full: one clear sentence, and everything recorded before is still there."""

import asyncio
import os
import subprocess

import pytest

import hud.client
from hud import Environment
from hud.errors import StoreError
from hud.eval import Taskset

env = Environment("big")


@env.template()
async def say(number: int = 0):
    answer = yield "much to read " * 2000
    yield 1.0 if answer == "word" else 0.0


async def agent(run):
    run.trace.content = "word"


@pytest.fixture
def small_disk(tmp_path, monkeypatch):
    """A HUD_HOME with 3 MiB of room."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk can only be mounted by root")
    home = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(home))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield home
    hud.client.disconnect(home)
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def tasks(count):
    return Taskset("big", [say(number=number) for number in range(count)])


async def runs_of_jobs():
    return [job["runs"] for job in (await hud.client.connect().get("/v2/jobs"))["items"]]


@pytest.mark.slow
def test_a_full_disk_stops_the_job_and_keeps_what_was_there(small_disk):
    asyncio.run(tasks(5).run(agent))
    ended = []
    with pytest.raises(StoreError, match=r"(No space left|is full|disk I/O).* MB are free there"):
        asyncio.run(tasks(500).run(agent, on_run=ended.append))
    assert asyncio.run(runs_of_jobs())[-1] == 5


def test_once_there_is_room_again_everything_is_stored(small_disk):
    filler = small_disk.parent / "filler"
    asyncio.run(tasks(1).run(agent))
    filler.write_bytes(b"")
    room = os.statvfs(small_disk)
    with filler.open("wb") as file:
        file.write(b"x" * (room.f_bavail * room.f_bsize - 40_000))
    with pytest.raises(StoreError):
        asyncio.run(tasks(50).run(agent))
    filler.unlink()
    recorder = hud.client.recorder()

    async def again():
        await tasks(1).run(agent)
        await recorder.flush()
        return await runs_of_jobs()

    assert len(asyncio.run(again())) == 3
    hud.client.disconnect(small_disk)
    assert list((small_disk / "journal").glob("*")) == []
