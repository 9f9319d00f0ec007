"""Floods of what a kernel hands out, from inside of a workspace: they end there, and the run goes on."""

import shutil

import asyncssh
import pytest

from hud import Environment
from hud.capabilities.shell.ssh import SSHClient
from hud.environment import WorkspaceLimits

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)
SMALL = WorkspaceLimits(memory_mb=192, processes=40, disk_mb=24, scratch_mb=8)
BOMBS = {
    "output": "yes | head -c 300000000",
    "errors": "yes | head -c 100000000 >&2",
    "one line": "head -c 50000000 /dev/zero | tr '\\0' x",
    "watches": """python3 - <<'PY'
import ctypes
libc = ctypes.CDLL(None)
made = [libc.inotify_init() for _ in range(100000)]
for one in made[:50]:
    for _ in range(20000): libc.inotify_add_watch(one, b'/tmp', 0xfff)
PY""",
    "descriptors": 'python3 -c "import os; [os.pipe() for _ in range(10**6)]"',
    "sockets": 'python3 -c "import socket; x = [socket.socketpair() for _ in range(10**6)]"',
    "terminals": 'python3 -c "import os; x = [os.openpty() for _ in range(10**5)]"',
    "timers": 'python3 -c "import threading; [threading.Timer(100, print).start() for _ in range(10**5)]"',
    "pipes": 'python3 -c "import os, fcntl; x = [os.pipe() for _ in range(400)]; [fcntl.fcntl(w, 1031, 1 << 20) for _, w in x]; [os.set_blocking(w, False) or os.write(w, bytes(1 << 20)) for _, w in x]"',
    "folders": "python3 -c \"import os\nfor n in range(10**6): os.mkdir('d'); os.chdir('d')\"",
    "names": "python3 -c \"import os\nfor n in range(10**6): os.symlink('x' * 4000, f'/tmp/{n}')\"",
    "locks": "python3 -c \"import fcntl\nf = open('l', 'w')\nfor n in range(10**6): fcntl.lockf(f, 2, 1, 2 * n)\"",
    "shared memory": 'python3 -c "import ctypes; c = ctypes.CDLL(None); print([c.shmget(n, 1 << 26, 0o1666) for n in range(9000)][-1])"',
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", BOMBS)
async def test_floods_stay_inside_and_the_run_goes_on(kind):
    env = Environment("cage")
    shell = env.workspace(limits=SMALL)
    async with env.run() as run:
        opened = run.parts.of(shell)
        client = await SSHClient.connect(opened.capability)
        try:
            done = await client.run(BOMBS[kind], timeout=8)
            assert len(done.stdout) + len(done.stderr) < 64 << 20
            # What went off may still hold what it took; the environment ends it, as before a grade.
            await opened.end_all()
            assert (await client.run("echo alive", timeout=30)).stdout == "alive\n"
        finally:
            await client.close()
        assert opened.fault() is None


@pytest.mark.parametrize("size", [(0, 0), (2**31 - 1, 2**31 - 1), (2**32 - 1, 1), (65_536, 65_536)])
async def test_a_terminal_of_any_size_is_one(size):
    env = Environment("cage")
    shell = env.workspace(limits=SMALL)
    async with env.run() as run:
        capability = run.parts.of(shell).capability
        host, port = capability.url.removeprefix("ssh://").split(":")
        key = asyncssh.import_private_key(capability.params["client_key"])
        options = {"username": "agent", "client_keys": [key], "known_hosts": None, "config": []}
        async with (
            asyncssh.connect(host, int(port), **options) as connection,
            connection.create_process(term_type="xterm", term_size=size) as process,
        ):
            process.stdin.write("echo al''ive; exit\n")
            assert "alive" in await process.stdout.read()
