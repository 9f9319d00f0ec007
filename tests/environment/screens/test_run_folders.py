"""Temporary folders of runs: gone after the run, and after the next one where their maker was killed."""

import asyncio
import os
import signal
import tempfile

import pytest

from hud.environment.screens.run_folders import run_folder
from hud.processes import locked_folder


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(locked_folder, "_YOUNG_SECONDS", 0.0)


async def test_a_folder_is_gone_after_its_run(tmp_path):
    async with run_folder("screen") as folder:
        (folder / "home" / "file").write_text("x")
        async with run_folder("screen"):
            assert folder.exists()  # The next one swept, and left what is held.
    assert list(tmp_path.iterdir()) == []


def killed_while_it_held_a_folder():
    async def die():
        async with run_folder("screen"):
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            asyncio.run(die())
        finally:
            os._exit(1)
    os.waitpid(child, 0)


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    killed_while_it_held_a_folder()
    (left,) = tmp_path.iterdir()
    (tmp_path / "hud-screen-file").write_text("somebody's")
    (tmp_path / "hud-screen-link").symlink_to(tmp_path)

    async def next_one():
        async with run_folder("screen"):
            return left in tmp_path.iterdir()

    assert not asyncio.run(next_one())
    assert {path.name for path in tmp_path.iterdir()} == {"hud-screen-file", "hud-screen-link"}


async def test_a_folder_that_others_must_reach_is_where_they_may(tmp_path):
    tmp_path.chmod(0o700)
    async with run_folder("screen", reached_by_others=True) as folder:
        assert all(place.stat().st_mode & 0o001 for place in folder.parents)
    assert not folder.exists()
