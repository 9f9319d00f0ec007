"""What an agent may try to get out of its workspace, or to take more than its share: none of it works."""

import asyncio
import contextlib
import os
import platform
import shutil
import socket
import subprocess

import asyncssh
import pytest

from hud import Environment
from hud.agents.native.bash import BashTool
from hud.agents.native.editor import EditorTool
from hud.capabilities.shell.ssh import SSHClient
from hud.environment import WorkspaceLimits
from hud.errors import EnvironmentFault

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)
numbered = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="it names system calls by their numbers on x86-64"
)
SMALL = WorkspaceLimits(memory_mb=192, processes=40, disk_mb=24, scratch_mb=8)
OURS = {"cwd": None, "timeout": 10, "alone": False, "env": None}
SECRET = "the-host-keeps-this"


@contextlib.asynccontextmanager
async def workspace(root=None, **options):
    """The agent's side of a run's workspace, and the environment's."""
    env = Environment("cage")
    shell = env.workspace(root, **{"limits": SMALL, **options})
    async with env.run() as run:
        opened = run.parts.of(shell)
        client = await SSHClient.connect(opened.capability)
        client.opened = opened
        try:
            yield client
        finally:
            await client.close()


@pytest.fixture
async def inside():
    async with workspace() as client:
        yield client


@contextlib.contextmanager
def marker_process(seconds):
    """A process of the host."""
    process = subprocess.Popen(["sleep", seconds])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def python(client, code):
    """Run Python inside, with the system calls at hand."""
    prelude = (
        "import ctypes, errno, os, socket, struct, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def call(*a):\n"
        "    r = libc.syscall(*a)\n"
        "    return 'done' if r >= 0 else errno.errorcode[ctypes.get_errno()]\n"
    )
    finished = await client.run("python3 -", input=prelude + code, timeout=30)
    assert finished.exit_status == 0, finished.stderr
    return finished.stdout.split()


@pytest.fixture
def secret(tmp_path):
    file = tmp_path / "secret.txt"
    file.write_text(SECRET)
    return file


async def test_a_symlink_out_leads_nowhere(inside, secret):
    made = await inside.run(
        f"ln -s {secret} link && ln -s {secret.parent} folder; cat link folder/*"
    )
    assert SECRET not in made.stdout
    assert made.exit_status != 0
    for path in ("link", "folder/secret.txt"):
        with pytest.raises(OSError, match="No such file"):
            await inside.read(path)
    with pytest.raises(OSError, match="No such file"):
        await inside.entries("folder")


async def test_the_host_follows_no_link_when_it_looks_at_files(inside, secret):
    await inside.run(f"ln -s {secret} link; ln -s {secret.parent} folder; echo mine > file")
    seen = await inside.opened.observe()
    assert [patch["path"] for patch in seen["files"]["patches"]] == ["file"]
    assert SECRET not in str(seen)


async def test_a_link_in_the_root_is_copied_as_a_link(tmp_path, secret):
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(secret)
    async with workspace(root) as client:
        found = await client.run("readlink link; cat link")
        assert found.stdout.strip() == str(secret)
        assert found.exit_status != 0


@pytest.mark.parametrize("path", ["../../../..{}", "/proc/1/root{}", "/workspace/../..{}"])
async def test_sftp_reaches_no_further_than_the_shell(inside, secret, path):
    with pytest.raises(OSError, match="No such file|Permission denied"):
        await inside.read(path.format(secret))


async def test_nobody_writes_where_it_was_not_meant(inside, secret):
    for path in ("/usr/bin/evil", "/etc/ld.so.preload", "/run/hud/supervisor.py", "/x", "/dev/x"):
        with pytest.raises(OSError, match=r"Failure|Read-only|denied"):
            await inside.write(path, "#!/bin/sh\n")
        assert (await inside.run(f"echo x > {path}")).exit_status != 0
    assert not os.access("/usr/bin/evil", os.F_OK)


async def test_the_hosts_folders_are_not_there(inside):
    found = await inside.run("ls -A / /home /root /var /run /tmp /etc/ssh /srv /opt /mnt /sys 2>&1")
    assert "No such file or directory" in found.stdout
    for name in ("/root", "/sys", "/srv", "/opt", "/mnt", "/etc/ssh"):
        assert f"'{name}': No such file" in found.stdout
    shadow = await inside.run("cat /etc/shadow; cut -d: -f1 /etc/passwd")
    assert shadow.stdout.split() == ["root", "agent", "nobody"]


async def test_the_first_process_keeps_its_own_to_itself(inside):
    for name in ("environ", "root/etc", "cwd/", "fd/", "mem", "maps", "exe"):
        looked = await inside.run(f"ls /proc/1/{name} && head -c 10 /proc/1/{name}")
        assert looked.exit_status != 0, name


async def test_the_hosts_processes_are_not_seen(inside):
    with marker_process("321.5"):
        seen = await inside.run("cat /proc/[0-9]*/cmdline; echo; ls -d /proc/[0-9]* | wc -l")
        assert "321.5" not in seen.stdout
        assert int(seen.stdout.splitlines()[-1]) < 6


async def test_signals_end_nothing_of_the_host(inside):
    with marker_process("300") as marker:
        tried = await inside.run(f"kill -9 {marker.pid} {os.getpid()} {os.getppid()}")
        assert "No such process" in tried.stderr
        await inside.run("kill -9 1; kill -STOP 1; kill -INT 1; kill -9 -1")
        assert marker.poll() is None
        assert (await inside.run("echo alive")).stdout == "alive\n"


@pytest.mark.slow
async def test_a_fork_bomb_stays_small_and_ends(inside):
    bomb = "bomb() { bomb | bomb & }; bomb; sleep 1; echo over"
    await inside.run(bomb, timeout=5)
    async with workspace() as other:
        assert (await other.run("echo fine")).stdout == "fine\n"
    (group,) = [
        one for one in inside.opened.sandbox.launch.group.folders if "pids" in str(one)
    ] or [None]
    if group is not None:
        assert int((group / "pids.current").read_text()) <= SMALL.processes + 16
    await inside.opened.sandbox.kill_all()
    assert (await inside.run("echo again")).stdout == "again\n"


async def test_files_fill_the_share_and_no_disk(inside):
    for folder, most in (("/workspace", 24), ("/tmp", 8), ("/dev/shm", 8), ("/home/agent", 8)):
        filled = await inside.run(f"cat /dev/zero > {folder}/full; stat -c %s {folder}/full")
        assert "No space left" in filled.stderr
        assert int(filled.stdout) <= most << 20
    assert (await inside.run("rm /workspace/full; echo ok > file; cat file")).stdout == "ok\n"


@pytest.mark.slow
async def test_a_sea_of_tiny_files_is_bounded_by_the_memory():
    sea = "import os\nfor n in range(10**7):\n    os.close(os.open(f'f{n}', os.O_CREAT))\n"
    async with workspace(limits=WorkspaceLimits(memory_mb=64)) as client:
        flooded = await client.run("python3 -", input=sea, timeout=60)
        assert flooded.exit_status != 0
        seen = await client.opened.observe()
        assert seen["files"]["truncated"]
        assert client.opened.fault() is None


@pytest.mark.slow
async def test_memory_is_taken_from_who_took_it(inside):
    hog = await inside.run("python3 -c 'x = bytearray(1 << 30)'")
    assert hog.exit_status != 0
    assert (await inside.run("echo alive")).stdout == "alive\n"
    assert inside.opened.fault() is None


async def test_the_servers_keys_are_not_inside(inside):
    key = inside.opened.capability.params["client_key"].splitlines()[2]
    found = await inside.run(
        "grep -rlsF -f - /workspace /tmp /home /run /etc /proc/[0-9]*/environ /proc/[0-9]*/cmdline; "
        "ls ~/.ssh /root/.ssh",
        input=key,
    )
    assert found.stdout == ""


async def test_the_hosts_variables_are_not_inside(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    async with workspace() as client:
        found = await client.run("env; cat /proc/*/environ | tr '\\0' '\\n'")
        assert SECRET not in found.stdout
        assert "HOME=/home/agent" in found.stdout


async def test_nothing_is_inherited_but_the_standard_streams(inside):
    opened = await python(inside, "print(*sorted(os.listdir('/proc/self/fd')))")
    assert opened == ["0", "1", "2", "3"]  # The last is the listing's own.


@numbered
async def test_tracing_is_refused(inside):
    code = "print(call(101, 16, 1, 0, 0), call(310, 1, 0, 0, 0, 0, 0))"
    assert await python(inside, code) == ["EPERM", "EPERM"]


@numbered
async def test_no_file_systems_are_mounted_and_no_namespaces_made(inside):
    code = (
        "print(call(165, b'x', b'/tmp', b'tmpfs', 0, 0), call(166, b'/proc/cmdline', 2), call(161, b'/tmp'),"
        "call(155, b'/tmp', b'/tmp'), call(272, 0x10000000), call(272, 0x00020000), call(56, 0x10000000 | 17, 0),"
        "call(435, 0, 0), call(308, 0, 0), call(428, -100, b'/', 0))"
    )
    assert await python(inside, code) == [*["EPERM"] * 7, "ENOSYS", "EPERM", "EPERM"]


@numbered
async def test_the_kernels_corners_are_out_of_reach(inside):
    code = (
        "print(call(321, 0, 0, 0), call(323, 0), call(298, 0, 0, -1, -1, 0), call(425, 1, 0), call(250, 0, -3, 0),"
        "call(248, b'user', b'x', b'y', 1, -3), call(303, -100, b'/', 0, 0, 0), call(304, 0, 0, 0),"
        "call(175, 0, 0, 0), call(246, 0, 0, 0, 0), call(169, 0xfee1dead, 672274793, 0x1234567))"
    )
    assert set(await python(inside, code)) == {"EPERM"}


@numbered
async def test_calls_of_the_other_architecture_are_refused(inside):
    code = (
        "import mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(bytes.fromhex('53b80f000000cd805bc3'))\n"  # mov eax, 15 (chmod); int 0x80
        "run = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))\n"
        "print(errno.errorcode[-run()], call(0x40000000 + 39))"
    )
    assert await python(inside, code) == ["ENOSYS", "ENOSYS"]


async def test_nobody_becomes_another_user(inside):
    found = await inside.run(
        "cp /bin/bash b && chmod 4755 b && ./b -p -c 'id -u; grep NoNewPrivs /proc/self/status'; "
        "su -c id root </dev/null; python3 -c 'import os; os.setuid(0)'"
    )
    assert found.stdout.split() == ["1000", "NoNewPrivs:", "1"]
    assert "OSError" in found.stderr


async def test_no_port_of_the_host_is_reached(inside):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = (
            "for at in [('127.0.0.1', %d), ('127.0.0.1', %d), ('1.1.1.1', 53), ('169.254.169.254', 80)]:\n"
            "    try: socket.create_connection(at, 2); print('reached')\n"
            "    except OSError as e: print(errno.errorcode[e.errno])\n"
            "print(*[name for _, name in socket.if_nameindex()])"
        )
        own = inside.opened.server.port
        assert await python(inside, code % (port, own)) == [
            "ECONNREFUSED",
            "ECONNREFUSED",
            "ENETUNREACH",
            "ENETUNREACH",
            "lo",
        ]


async def test_no_socket_of_the_host_is_reached(inside, tmp_path):
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        abstract.bind(f"\0hud-test-{os.getpid()}")
        abstract.listen()
        named.bind(str(tmp_path / "socket"))
        named.listen()
        code = (
            "for at in ['\\0hud-test-%d', '%s']:\n"
            "    try: socket.socket(socket.AF_UNIX).connect(at); print('reached')\n"
            "    except OSError as e: print(errno.errorcode[e.errno])"
        )
        found = await python(inside, code % (os.getpid(), tmp_path / "socket"))
        assert found == ["ECONNREFUSED", "ENOENT"]


async def test_other_families_of_sockets_are_refused(inside):
    code = (
        "for kind in [(17, 3), (40, 1), (38, 5), (16, 3), (2, 3, 1)]:\n"  # packet, vsock, alg, netlink, raw
        "    try: s = socket.socket(*kind); print('open')\n"
        "    except OSError as e: print(errno.errorcode[e.errno])"
    )
    assert await python(inside, code) == [*["EAFNOSUPPORT"] * 3, "open", "EPERM"]


@pytest.mark.slow
async def test_another_runs_files_and_processes_are_not_seen():
    async with workspace() as one, workspace() as other:
        await one.run(
            "echo mine > file; echo mine > /tmp/file; mkfifo /dev/shm/pipe; (sleep 432.1 &)"
        )
        seen = await other.run(
            "cat file /tmp/file; ls /dev/shm; cat /proc/[0-9]*/cmdline | tr '\\0' ' '; ipcs -m | grep -c 0x"
        )
        assert "mine" not in seen.stdout
        assert "432.1" not in seen.stdout
        assert "pipe" not in seen.stdout
        users = [client.opened.sandbox.launch.user for client in (one, other)]
        assert users == [None, None] or users[0] != users[1]


async def test_there_are_no_devices_and_none_can_be_made(inside):
    found = await inside.run("ls /dev; mknod disk b 254 0; mknod mem c 1 1; cat /dev/kmsg /dev/mem")
    names = set(found.stdout.split())
    known = "core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero console"
    assert names <= set(known.split())
    assert found.stderr.count("Operation not permitted") == 2


async def test_the_control_groups_cannot_be_left(inside):
    found = await inside.run(
        "ls /sys/fs/cgroup; mount -t cgroup2 none /tmp; grep cgroup /proc/self/mountinfo"
    )
    assert found.stdout == ""


@numbered
async def test_terminals_cannot_be_typed_into(inside):
    code = (
        "import fcntl, pty, termios\n"
        "master, slave = pty.openpty()\n"
        "for request in (termios.TIOCSTI, 0x541c, 0x1_0000_5412):\n"
        "    print(call(16, slave, ctypes.c_ulong(request), b'x'))"
    )
    assert await python(inside, code) == ["EPERM"] * 3


async def test_files_of_the_system_cannot_be_linked_in_or_opened_by_number(inside):
    found = await inside.run("ln /etc/passwd mine; ln /usr/bin/env mine; ls mine")
    assert found.stdout == ""
    assert found.exit_status != 0


async def test_the_kernels_settings_cannot_be_written(inside):
    tried = await inside.run(
        "for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/sys/vm/overcommit_memory "
        "/proc/1/oom_score_adj /proc/self/uid_map; do (echo 1 > $f) 2>/dev/null && echo $f; done; "
        "head -c 1 /proc/kcore /proc/kallsyms /proc/keys 2>/dev/null | tr -d '\\0=<> /a-z\\n'"
    )
    assert tried.stdout == ""


async def test_ssh_forwards_nothing(inside):
    connection = await inside._connected()
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_connection("127.0.0.1", server.getsockname()[1])
        with pytest.raises(asyncssh.ChannelOpenError):
            await connection.open_unix_connection("/run/x.sock")


async def test_a_client_exposes_a_port_inside_alone(inside):
    async def serve(reader, writer):
        writer.write((await reader.readline()).upper())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = await inside.expose("127.0.0.1", server.sockets[0].getsockname()[1])
        asked = await python(
            inside,
            f"with socket.create_connection(('127.0.0.1', {port})) as asked:\n"
            "    asked.sendall(b'hello\\n')\n"
            "    print(asked.makefile().read())\n",
        )
    assert asked == ["HELLO"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


async def test_exposed_ports_have_a_limit(inside):
    for _ in range(8):
        await inside.expose("127.0.0.1", 9)
    with pytest.raises(EnvironmentFault, match="forwards no ports"):
        await inside.expose("127.0.0.1", 9)


async def test_only_the_runs_key_opens(inside):
    own = inside.opened.capability
    async with workspace() as other:
        params = {**own.params, "client_key": other.opened.capability.params["client_key"]}
        with pytest.raises(EnvironmentFault, match="refuses the login"):
            await SSHClient.connect(type(own)(own.name, own.protocol, own.url, params))
        wrong_host = {**own.params, "host_pubkey": other.opened.capability.params["host_pubkey"]}
        with pytest.raises(EnvironmentFault, match="refuses the login"):
            await SSHClient.connect(type(own)(own.name, own.protocol, own.url, wrong_host))


@pytest.mark.slow
async def test_files_made_to_trap_who_looks_at_them_do_not(inside):
    await inside.run(
        "mkfifo pipe; truncate -s 20M large; echo x > closed; chmod 0 closed; touch $'odd\\xff\\nname'; "
        "mkdir locked; touch locked/f; chmod 0 locked; python3 -c 'import socket; "
        'socket.socket(socket.AF_UNIX).bind("sock")\'; '
        "d=.; for i in $(seq 60); do d=$d/d; done; mkdir -p $d; touch $d/deep; "
        'python3 -c \'print("a\\n" * 60000 + "b\\n" * 60000)\' > long'
    )
    async with asyncio.timeout(20):
        await inside.opened.observe()
        await inside.run('python3 -c \'print("b\\n" * 60000 + "a\\n" * 60000)\' > long')
        seen = await inside.opened.observe()
    assert [patch["path"] for patch in seen["files"]["patches"]] == ["long"]


@pytest.mark.slow
async def test_when_its_time_is_up_everything_ends_and_nothing_starts():
    async with workspace(limits=WorkspaceLimits(seconds=1.5)) as client:
        slept = await client.run("sleep 30", timeout=10)
        assert slept.exit_status == -1
        after = await client.run("echo more")
        assert after.stdout == ""
        assert "its time is up" in after.stderr
        said = await BashTool(client).call({"command": "echo more"})
        assert "its time is up (1.5 s)\n[The shell ended with status 126" in said.content[0].text
        refused = await EditorTool(client).call(
            {"command": "create", "path": "x", "file_text": "y"}
        )
        assert refused.is_error
        assert "gives no access to files" in refused.content[0].text
        assert (await client.opened.bash("echo ours", **OURS)).stdout == "ours\n"
        assert client.opened.fault() is None


LOCK = """
import fcntl, os, sys, time
places = ["/usr/bin/env", "/etc/passwd", "/etc/hosts", "/tmp", "/dev/shm", "/workspace", os.path.expanduser("~"), "/", "/proc", "/dev"]
places += [f"/dev/{name}" for name in os.listdir("/dev")] + [f"/dev/pts/{name}" for name in os.listdir("/dev/pts")]
held = []
for place in {os.path.realpath(place) for place in places}:
    try:
        held.append(os.open(place, os.O_RDONLY | os.O_NONBLOCK))
        fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(place)
    except OSError:
        pass  # No such device here.
print("locked", flush=True)
time.sleep(float(sys.argv[1]))
"""
SHARED = {
    "/usr/bin/env",
    *(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")),
}


async def test_locks_of_another_run_are_seen_on_the_files_that_the_page_names_alone():
    async with workspace() as first, workspace() as second:
        for client in (first, second):
            await client.write("lock.py", LOCK.encode())
        holding = asyncio.create_task(first.run("python3 lock.py 60 > locked", timeout=90))
        while "locked" not in (await first.run("cat locked", timeout=10)).stdout:
            pass
        seen = (await second.run("python3 lock.py 0", timeout=30)).stdout.split()
        assert seen[-1] == "locked"
        assert set(seen[:-1]) <= SHARED
        holding.cancel()
