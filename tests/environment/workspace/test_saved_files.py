"""A workspace's files, saved and restored in another sandbox: equal, bounded, and no way out for what an agent forges."""

import contextlib
import json
import os
import shutil
import zlib

import pytest

from hud.environment.part import NoSnapshotError
from hud.environment.workspace.files import saved_files
from hud.environment.workspace.files.saved_files import SavedFiles
from hud.environment.workspace.sandbox.bubblewrap import Plan
from hud.environment.workspace.sandbox.commands import run_inside
from hud.environment.workspace.sandbox.limits import WorkspaceLimits
from hud.environment.workspace.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)
LIMITS = WorkspaceLimits(memory_mb=512, disk_mb=200, scratch_mb=32)
SETUP = (
    "mkdir -p src/deep old; echo one > src/a; echo two > src/deep/b; echo x > old/c; ln -s a src/l"
)
LISTING = (
    "cd / && find workspace home tmp -mindepth 1 -not -name '.hud*' "
    "-printf '%p %y %m %s %l %T@\\n' | grep -v ' d ' | sort; find workspace -type f -exec md5sum {} + | sort"
)


class Place:
    """A sandbox with the files of a task's setup, and their start."""

    def __init__(self, sandbox):
        self.sandbox = sandbox
        self.saved = SavedFiles(sandbox)

    async def run(self, command):
        argv = ["/bin/bash", "-c", f"cd /workspace && {command}"]
        outcome = await run_inside(self.sandbox, argv, seconds=60, kept_bytes=1 << 20)
        assert outcome.exit_code == 0, outcome
        return outcome.stdout

    async def restore(self, *entries):
        await self.saved.restore(zlib.compress(archive(*entries)))


def archive(*entries):
    """An archive of entries, and of contents after those that are tuples."""
    data = b""
    for entry in entries:
        entry, contents = entry if isinstance(entry, tuple) else (entry, b"")
        data += json.dumps(entry).encode() + b"\n" + contents
    return data


@contextlib.asynccontextmanager
async def place(setup=SETUP):
    sandbox = Sandbox(Plan("/workspace", LIMITS))
    try:
        await sandbox.start()
        opened = Place(sandbox)
        await opened.run(setup)
        await opened.saved.begin()
        yield opened
    finally:
        await sandbox.close()


def file(path, contents=b"data", **fields):
    entry = {"kind": "file", "path": path, "mode": 0o644, "time": 10**18, "size": len(contents)}
    return {**entry, **fields}, contents


@pytest.mark.parametrize(
    "work",
    [
        "true",
        "echo changed > src/a; rm -r old; mkdir -p new/empty; echo é > 'new/naïve name'",
        "rm -r src; echo now a file > src",
        "rm src/a; mkdir src/a; echo inside > src/a/x; ln -sfn /etc/passwd src/l",
        "chmod 400 src/a; chmod 750 src/deep; ln src/deep/b src/hard; touch -d 2001-02-03 src/deep/b",
        "printf 'a\\377b' > $(printf 'raw\\377'); truncate -s 3000000 sparse; echo h > ~/notes; echo t > /tmp/t",
        "rm src/l; mkdir src/l; mv src/deep src/l/deep",
    ],
)
async def test_files_are_equal_after_a_restore(work):
    async with place() as first, place() as second:
        await first.run(work)
        await second.saved.restore(await first.saved.save())
        assert await second.run(LISTING) == await first.run(LISTING)
        # From there on, too: the changes are those since the task's start.
        await second.run("echo more >> src2")
        async with place() as third:
            await third.saved.restore(await second.saved.save())
            assert await third.run(LISTING) == await second.run(LISTING)


async def test_an_unchanged_tree_is_not_in_the_archive():
    async with place("head -c 5000000 /dev/urandom > big") as opened:
        await opened.run("echo small > note")
        assert len(await opened.saved.save()) < 10_000


async def test_pipes_and_sockets_are_left_out_and_setuid_is_dropped():
    async with place() as first, place() as second:
        await first.run(
            "mkfifo pipe; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\"; "
            "cp /bin/true own; chmod 6755 own; mkdir g; chmod 2777 g"
        )
        data = await first.saved.save()
        await second.saved.restore(data)
        assert await second.run("ls; stat -c %a own g") == "g\nold\nown\nsrc\n755\n777\n"


async def test_too_much_is_refused_by_its_reason(monkeypatch):
    async with place() as opened:
        await opened.run("head -c 70000000 /dev/zero > big")
        with pytest.raises(NoSnapshotError, match="more of it has changed"):
            await opened.saved.save()
        await opened.run("rm big; chmod 000 src/a; echo y >> src/deep/b")
        monkeypatch.setattr(saved_files, "MOST_FILES", 3)
        with pytest.raises(NoSnapshotError, match="more than 3 files"):
            await opened.saved.save()


ESCAPES = {
    "above": [file("/workspace/../etc/x")],
    "relative": [file("workspace/x")],
    "elsewhere": [file("/etc/x")],
    "a device's folder": [file("/dev/shm/x")],
    "another run's": [file("/proc/1/cwd/x")],
    "the folder itself": [{"kind": "gone", "path": "/workspace"}],
    "dots": [file("/workspace/./x")],
    "empty names": [file("/workspace//x")],
    "nul": [file("/workspace/a\0b")],
    "through its own link": [
        {"kind": "link", "path": "/workspace/up", "target": "/home"},
        file("/workspace/up/x"),
    ],
    "through the setup's link": [file("/workspace/src/l/x")],
    "through a file": [file("/workspace/src/a/x")],
    "device": [{"kind": "device", "path": "/workspace/d", "mode": 0o666, "major": 1, "minor": 5}],
    "hard link": [{"kind": "hardlink", "path": "/workspace/h", "target": "/etc/passwd"}],
    "pipe": [{"kind": "fifo", "path": "/workspace/p", "mode": 0o666}],
    "no kind": [{"path": "/workspace/p"}],
    "no entry": [["file", "/workspace/p"]],
    "negative size": [file("/workspace/x", size=-1)],
    "huge size": [file("/workspace/x", size=1 << 40)],
    "cut off": [(file("/workspace/x")[0], b"")],
    "no number": [file("/workspace/x", mode="rw")],
    "deep": [{"kind": "gone", "path": "/workspace" + "/d" * 10_000}],
}


@pytest.mark.parametrize("entries", ESCAPES.values(), ids=ESCAPES)
async def test_a_forged_archive_is_refused(entries):
    async with place() as opened:
        before = await opened.run("cd / && ls -a etc dev home workspace/src")
        with pytest.raises(NoSnapshotError):
            await opened.restore(*entries)
        assert await opened.run("cd / && ls -a etc dev home workspace/src") == before


async def test_a_forged_link_is_a_link_and_is_not_followed():
    async with place() as opened:
        await opened.restore(
            {"kind": "link", "path": "/workspace/l2", "target": "/workspace/src/a"},
            {"kind": "same", "path": "/workspace/l2", "time": 5},
            file("/workspace/l2", b"own"),
        )
        assert await opened.run("cat l2; cat src/a; stat -c %F l2") == "ownone\nregular file\n"


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o1777, -1, 1 << 70])
async def test_forged_modes_have_no_special_bits(mode):
    async with place() as opened:
        await opened.restore(file("/workspace/x", b"#!/bin/sh\n", mode=mode))
        assert int((await opened.run("stat -c %a x")).strip(), 8) & ~0o777 == 0


async def test_a_bomb_is_not_unpacked():
    async with place() as opened:
        with pytest.raises(NoSnapshotError, match="too large"):
            await opened.saved.restore(zlib.compress(bytes(300 << 20), 9))
        with pytest.raises(NoSnapshotError, match="damaged"):
            await opened.saved.restore(os.urandom(1000))


async def test_too_many_entries_are_refused(monkeypatch):
    monkeypatch.setattr(saved_files, "MOST_FILES", 100)
    async with place() as opened:
        with pytest.raises(NoSnapshotError, match="too many entries"):
            await opened.restore(*({"kind": "gone", "path": f"/workspace/{n}"} for n in range(101)))
