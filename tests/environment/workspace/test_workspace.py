"""Workspaces: each run has a shell and files of its own, and what it does to them is told and graded."""

import asyncio
import contextlib
import http.server
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import httpx
import pytest

from hud import Environment
from hud.capabilities.shell.ssh import SSHClient
from hud.environment import Mount, Peer, Workspace, WorkspaceLimits
from hud.environment.current_run import entered
from hud.environment.workspace.files import snapshot
from hud.environment.workspace.files.changes import Changes
from hud.environment.workspace.network.policy import Network
from hud.environment.workspace.network.proxy import Proxy
from hud.environment.workspace.sandbox import cgroups
from hud.errors import AgentFault, EnvironmentFault, UsageError
from hud.eval import LocalRuntime, Taskset
from hud.graders import BashGrader

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)
SMALL = WorkspaceLimits(memory_mb=256, processes=64, disk_mb=32, scratch_mb=8)


@contextlib.asynccontextmanager
async def workspace(root=None, **options):
    """A run's workspace: the declaration, in whose run the code inside is, and the agent's client."""
    env = Environment("place")
    shell = env.workspace(root, **{"limits": SMALL, **options})
    async with env.run() as run:
        with entered(run):
            client = await SSHClient.connect(shell.opened.capability)
            try:
                yield shell, client
            finally:
                await client.close()


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (root / "src" / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    (root / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "run.sh").chmod(0o500)
    (root / "link").symlink_to("run.sh")
    os.mkfifo(root / "pipe")
    return root


@pytest.mark.slow
async def test_each_run_begins_with_its_own_copy_of_the_root(root):
    async with workspace(root) as (_, one), workspace(root) as (_, other):
        assert (await one.run("./run.sh; ls; cat link | head -1")).stdout.split() == [
            *["ran", "link", "run.sh", "src", "#!/bin/sh"]
        ]
        await one.run("rm -r src; echo changed > run.sh")
        assert (await other.run("cat src/calc.py")).stdout.startswith("def add")
    assert (root / "run.sh").read_text().startswith("#!/bin/sh")


async def test_one_that_was_made_by_hand_is_the_same(root):
    made = Workspace(root, name="desk", limits=SMALL)
    env = Environment("place", capabilities=[made])
    with pytest.raises(UsageError, match="'desk' is up inside a run alone"):
        await made.read("run.sh")
    async with env.run() as run:
        with entered(run):
            assert (await made.bash("./run.sh")).stdout == "ran\n"


async def test_a_root_that_does_not_fit_breaks_the_run(tmp_path):
    (tmp_path / "large").write_bytes(os.urandom(3 << 20))
    env = Environment("place")
    env.workspace(tmp_path, limits=WorkspaceLimits(disk_mb=1))
    with pytest.raises(EnvironmentFault, match=r"could not be copied into a workspace \(of 1 MB\)"):
        await env.run().open()


async def test_a_missing_root_breaks_the_run(tmp_path):
    env = Environment("place")
    env.workspace(tmp_path / "nowhere")
    with pytest.raises(EnvironmentFault, match="no folder"):
        await env.run().open()


@pytest.mark.slow
async def test_files_are_read_and_written_from_both_sides(tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "test_it.py").write_text("assert True\n")
    async with workspace() as (shell, client):
        await shell.write("a/b.txt", "from the environment")
        assert await client.read("a/b.txt") == b"from the environment"
        await client.write("c/d.bin", bytes(range(256)) * 2000)
        assert await shell.read("c/d.bin") == bytes(range(256)) * 2000
        await shell.copy_in(tmp_path / "hidden", "tests")
        await shell.copy_in(tmp_path / "hidden" / "test_it.py", "other/name.py")
        assert [entry.name for entry in await client.entries("tests")] == ["test_it.py"]
        assert await client.read("other/name.py") == b"assert True\n"
        with pytest.raises(FileNotFoundError):
            await shell.read("nowhere")


async def test_commands_of_the_environment_end_at_their_limit_and_tell_how_they_went():
    async with workspace(env={"STAGE": "test"}) as (shell, _):
        done = await shell.bash("pwd; echo $STAGE $MORE; echo bad >&2; exit 3", env={"MORE": "yes"})
        assert (done.exit_code, done.stdout, done.stderr) == (3, "/workspace\ntest yes\n", "bad\n")
        assert (await shell.bash("echo first; sleep 60", timeout=0.5)).exit_code is None
        assert (await shell.bash("kill -9 $$")).exit_code == 137
        await shell.bash("sleep 654.3 & sleep 654.3 & true")
        assert "654.3" not in (await shell.bash("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout


@pytest.mark.slow
async def test_clients_get_statuses_input_and_long_output():
    async with workspace() as (_, client):
        done = await client.run("cat; echo problem >&2; exit 9", input="given")
        assert (done.exit_status, done.stdout, done.stderr) == (9, "given", "problem\n")
        assert (await client.run("kill -TERM $$")).exit_status == -1
        assert (await client.run("sleep 50", timeout=0.3)).exit_status is None
        long = await client.run("head -c 3000000 /dev/zero | tr '\\0' x; echo end")
        assert long.stdout.endswith("xend\n")
        assert len(long.stdout) <= 1 << 20


@pytest.mark.slow
async def test_a_client_that_was_cut_off_connects_again():
    async with workspace() as (shell, client):
        await client.run("echo kept > file")
        for connection in list(shell.opened.server.connections):
            connection.abort()
        assert (await client.run("cat file")).stdout == "kept\n"
        for connection in list(shell.opened.server.connections):
            connection.abort()
        assert await client.read("file") == b"kept\n"


async def test_what_a_step_changed_is_told_once_with_patches(root):
    async with workspace(root) as (shell, client):
        assert await shell.opened.observe() == {}
        await client.write("src/calc.py", "def add(a, b):\n    return a + b\n")
        await client.run(
            "rm link; printf 'no end' > new; head -c 99 /dev/urandom > bin; mkdir .git; echo x > .git/x"
        )
        told = (await shell.opened.observe())["files"]
        patches = {patch["path"]: patch for patch in told["patches"]}
        assert sorted(patches) == ["bin", "new", "src/calc.py"]
        assert told["files_changed"] == 3
        assert patches["src/calc.py"]["status"] == "modified"
        assert patches["src/calc.py"]["patch"].endswith(
            "@@ -1,2 +1,2 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n"
        )
        assert patches["new"]["patch"].endswith("+no end\n\\ No newline at end of file\n")
        assert patches["bin"]["patch"] == ""
        assert patches["bin"]["size_after"] == 99
        assert await shell.opened.observe() == {}
        await client.run("rm new; touch -d 2001-01-01 src/calc.py")
        told = (await shell.opened.observe())["files"]
        assert [(patch["path"], patch["status"]) for patch in told["patches"]] == [
            ("new", "deleted")
        ]


async def test_those_who_follow_the_files_are_told_each_for_himself():
    async with workspace() as (shell, client):
        await client.run("echo early > early")
        follower = await shell.opened.follow_files()
        await client.run(
            "mkdir a; echo late > a/late; ln -s a b; ln -s /etc/passwd link; mkfifo pipe"
        )
        assert [patch["path"] for patch in (await follower.changed())["patches"]] == ["a/late"]
        assert await follower.changed() == {}
        assert len((await shell.opened.observe())["files"]["patches"]) == 2
        assert [(file["path"], file["size"]) for file in follower.files()] == [
            ("a/late", 5),
            ("early", 6),
        ]
        assert await follower.read("a/late", 5) == b"late\n"
        for path in ("b/late", "link", "pipe", "a", "a/../early/x", "nothing"):
            assert await follower.read(path, 5000) is None, path
        assert await follower.read("early", 5) is None
    async with workspace(track_files=False) as (shell, client):
        await client.run("echo x > file")
        assert await shell.opened.observe() == {}
        assert await shell.opened.follow_files() is None


def test_files_that_there_was_no_time_for_are_not_taken_for_gone(tmp_path, monkeypatch):
    changes = Changes(("skipped", "*.pyc"))
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        for name in ("a", "b", "skipped", "c.pyc"):
            (tmp_path / name).write_text("x\n")
        changes.begin(folder)
        assert sorted(changes.files) == ["a", "b"]
        monkeypatch.setattr(snapshot, "_SECONDS", 0.0)
        (tmp_path / "b").write_text("y\n")
        assert changes.since_last(folder) == {}
        monkeypatch.setattr(snapshot, "_SECONDS", 2.0)
        told = changes.since_last(folder)
    finally:
        os.close(folder)
    assert [(patch["path"], patch["status"]) for patch in told["patches"]] == [("b", "modified")]


def test_many_changes_are_cut_and_said_to_be(tmp_path):
    changes = Changes(())
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        changes.begin(folder)
        for number in range(250):
            (tmp_path / f"{number}.txt").write_text("line\n" * 2000)
        told = changes.since_last(folder)
    finally:
        os.close(folder)
    assert told["files_changed"] == 250
    assert told["truncated"] is True
    assert sum(len(patch["patch"]) for patch in told["patches"]) <= 200_000


async def test_a_grader_in_the_workspace_sees_the_files_and_nothing_of_the_agents_tricks(root):
    async with workspace(root) as (shell, client):
        check = "cd src && python3 -c 'import calc; assert calc.add(2, 3) == 5'"
        wrong = await BashGrader.grade(command=check, workspace=shell)
        assert wrong.value == 0.0
        await client.run(
            "mkdir -p ~/.local/bin && printf '#!/bin/sh\\nexit 0\\n' > ~/.local/bin/python3 && chmod +x ~/.local/bin/*;"
            "cp ~/.local/bin/python3 python3; echo 'exit 0' > ~/.bashrc; cp ~/.bashrc ~/.profile;"
            "mkdir -p ~/.local/lib/python3.11/site-packages;"
            "echo 'import os; os._exit(0)' > ~/.local/lib/python3.11/site-packages/usercustomize.py;"
            "(while sleep 0.05; do echo 'add = lambda a, b: 5' > src/calc.py; done) >/dev/null 2>&1 &"
        )
        await asyncio.sleep(0.2)
        await shell.end_all()
        await shell.copy_in(root / "src" / "calc.py", "src/calc.py")
        still_wrong = await BashGrader.grade(command=check, workspace=shell)
        assert still_wrong.value == 0.0
        assert "AssertionError" in still_wrong.info["stderr"]
        await client.write("src/calc.py", "def add(a, b):\n    return a + b\n")
        assert (await BashGrader.grade(command=check, workspace=shell)).value == 1.0


async def test_files_move_and_are_linked_from_folder_to_folder():
    moves = (
        "import os; os.makedirs('a/b'); os.makedirs('c'); open('a/b/x', 'w').write('1'); os.rename('a/b/x', 'c/y'); "
        "os.link('c/y', 'a/z'); os.rename('a/b', 'c/b'); os.replace('a/z', '/workspace/top'); print(open('top').read());"
        "open('/tmp/p', 'w'); os.mkdir('/tmp/q'); os.rename('/tmp/p', '/tmp/q/p'); os.mkdir(os.path.expanduser('~/d'));"
        "open(os.path.expanduser('~/f'), 'w'); os.rename(os.path.expanduser('~/f'), os.path.expanduser('~/d/f'));"
        "open('/dev/null', 'w').write('x'); open('/dev/shm/s', 'w').write('x')"
    )
    async with workspace() as (_, client):
        done = await client.run(f'python3 -c "{moves}"')
        assert (done.stdout, done.stderr) == ("1\n", "")
        done = await client.run("echo out > /dev/stdout; echo err | tee /dev/stderr > /dev/null")
        assert (done.stdout, done.stderr) == ("out\n", "err\n")


@pytest.mark.slow
async def test_graders_run_alone_or_among_what_was_left_running():
    async with workspace() as (shell, client):
        await client.run(
            "python3 -m http.server 8000 >/dev/null 2>&1 & "
            "until (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done"
        )
        asks = "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8000\")'"
        among = await BashGrader.grade(command=asks, workspace=shell, among_running=True)
        assert among.value == 1.0
        alone = [BashGrader.grade(command=asks, workspace=shell) for _ in range(2)]
        assert [score.value for score in await asyncio.gather(*alone)] == [0.0, 0.0]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)


@pytest.mark.parametrize(
    ("mischief", "kind", "reward"),
    [
        ("echo 42 > out", None, 1.0),
        ("true", "agent", 0.0),
        ("mkfifo out", "agent", 0.0),
        ("truncate -s 65M out", "agent", 0.0),
        ("mkfifo check; echo 42 > out", None, 1.0),
        ("mkdir check; echo 42 > out", "agent", 0.0),
        ("echo 42 > out; cat /dev/zero > full", "agent", 0.0),
        ("echo 42 > out; b() { b | b & }; b; sleep 0.3", None, 1.0),
    ],
)
async def test_an_agent_cannot_get_its_failure_taken_for_another(home, mischief, kind, reward):
    env = Environment("place")
    shell = env.workspace(limits=WorkspaceLimits(memory_mb=256, disk_mb=68, processes=64))

    @env.template()
    async def leave():
        yield "Leave 42 in `out`."
        await shell.end_all()
        await shell.write("check", "x" * 50_000)
        yield float((await shell.read("out")).strip() == b"42")

    async def agent(run):
        await (await run.open("ssh")).run(mischief, timeout=20)

    job = await Taskset("place", [leave()]).run(agent, runtime=LocalRuntime(env))
    (run,) = job.runs
    assert (run.failure_kind, run.reward) == (kind, reward), run.error


async def test_before_an_agent_comes_it_is_the_environments_own_fault():
    async with workspace() as (shell, _):
        with pytest.raises(EnvironmentFault, match="could not be written"):
            await shell.write("/usr/file", "x")
        with pytest.raises(FileNotFoundError) as caught:
            await shell.read("nowhere")
        assert not isinstance(caught.value, AgentFault)


async def test_a_workspace_that_dies_breaks_its_run_alone():
    async with workspace() as (shell, _), workspace() as (other, _):
        opened = shell.opened
        os.kill(opened.sandbox.launch.process.pid, 9)
        async with asyncio.timeout(10):
            while opened.fault() is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert "'shell'" in opened.fault()
        for use in (shell.bash("true"), shell.end_all(), shell.read("x"), shell.write("x", "y")):
            with pytest.raises(EnvironmentFault, match="'shell'"):
                await use
        assert other.opened.fault() is None


async def test_an_agent_that_uses_up_the_memory_breaks_nothing_of_ours():
    async with workspace(limits=WorkspaceLimits(memory_mb=48, disk_mb=400)) as (shell, client):
        if shell.opened.sandbox.launch.group is None:
            pytest.skip("there are no control groups here")
        await client.run("cat /dev/zero > full", timeout=20)
        assert shell.opened.fault() is None


@pytest.mark.slow
async def test_peers_are_reached_by_name_and_nothing_else():
    class Hello(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello from the host")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        peers = (Peer("shop", 8080, f"127.0.0.1:{port}"), Peer("mirror", 8080, f"127.0.0.1:{port}"))
        ask = "python3 -c 'import urllib.request as u; print(u.urlopen(\"%s\", timeout=5).read().decode())'"
        async with workspace(peers=peers) as (shell, client):
            for name in ("shop", "mirror"):
                assert "hello from" in (await client.run(ask % f"http://{name}:8080/")).stdout
            assert (await client.run(ask % f"http://127.0.0.1:{port}/")).exit_status != 0
            await shell.connect(9000, f"127.0.0.1:{port}")
            assert "hello from" in (await client.run(ask % "http://127.0.0.1:9000/")).stdout
        async with workspace(network=True, allowed_hosts=[f"127.0.0.1:{port}"]) as (_, client):
            asked = await client.run(f"no_proxy= NO_PROXY= {ask % f'http://127.0.0.1:{port}/x'}")
            assert "hello from" in asked.stdout, asked.stderr
            refused = await client.run(ask % "http://localhost.example:99/")
            assert "403" in refused.stderr
        async with workspace(network=True) as (_, client):
            refused = await client.run(f"no_proxy= NO_PROXY= {ask % 'http://127.0.0.1:80/'}")
            assert "403" in refused.stderr
        server.shutdown()


@pytest.mark.parametrize(
    ("allowed", "host", "port", "may"),
    [
        (None, "example.org", 443, True),
        (None, "example.org", 22, False),
        (["pypi.org"], "pypi.org", 443, True),
        (["pypi.org"], "evil-pypi.org", 443, False),
        (["pypi.org"], "pypi.org.evil", 443, False),
        (["pypi.org"], "pypi.org", 22, False),
        (["*.example.org"], "a.example.org", 80, True),
        (["*.example.org"], "example.org", 80, False),
        (["git.example.org:22"], "git.example.org", 22, True),
        (["git.example.org:22"], "git.example.org", 443, False),
    ],
)
def test_the_proxy_goes_where_it_may(allowed, host, port, may):
    from hud.environment.workspace.network.proxy import _Refused

    if may:
        Proxy(allowed)._allows(host, port)
    else:
        with pytest.raises(_Refused, match="may not reach"):
            Proxy(allowed)._allows(host, port)


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\n\r\n", b"x\r\n\r\n", b"CONNECT :1 HTTP/1.1\r\n\r\n"]
)
async def test_the_proxy_refuses_what_is_no_request_for_one(head):
    async def serve(reader, writer):
        await Proxy(None).serve((reader, writer))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(head)
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()


@pytest.fixture
def open_folder():
    """One that every user of this machine may read and write."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run("echo 1,2 > data; chmod 777 . data", shell=True, cwd=folder, check=True)
        yield folder


async def test_what_listens_in_there_is_reached_from_here():
    async with workspace() as (shell, client):
        address = await shell.reach(8000)
        async with httpx.AsyncClient(trust_env=False) as web:
            with pytest.raises(httpx.TransportError):
                await web.get(f"http://{address}/")
            await client.run(
                "echo served > page; python3 -m http.server 8000 >/dev/null 2>&1 & "
                "until (echo > /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.05; done"
            )
            pages = await asyncio.gather(*(web.get(f"http://{address}/page") for _ in range(5)))
            assert {page.text for page in pages} == {"served\n"}


async def test_mounts_are_read_only(open_folder):
    async with workspace(mounts=[Mount(open_folder, "/data")]) as (_, client):
        seen = await client.run("cat /data/data; echo more >> /data/data; touch /data/new")
        assert seen.stdout == "1,2\n"
        assert seen.stderr.count("Read-only") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root owns what others may not read")
async def test_a_mount_that_only_root_may_read_is_named(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o700)
    env = Environment("place")
    env.workspace(mounts=[Mount(tmp_path / "closed" / "..", "/data")])
    with pytest.raises(EnvironmentFault, match="Permission denied"):
        await env.run().open()


async def test_a_terminal_is_one():
    async with workspace() as (_, client):
        connection = await client._connected()
        process = await connection.create_process(term_type="xterm", term_size=(91, 31))
        process.stdin.write("tty; stty size; exit 5\n")
        shown = await process.stdout.read()
        await process.wait_closed()
        assert "/dev/pts/" in shown
        assert "31 91" in shown
        assert process.exit_status == 5


@pytest.mark.skipif(shutil.which("sftp") is None, reason="OpenSSH's client is not installed")
async def test_opensshs_own_clients_get_in(tmp_path):
    async with workspace() as (shell, _):
        at = shell.opened.capability
        key = tmp_path / "key"
        key.write_text(at.params["client_key"])
        key.chmod(0o600)
        port = at.url.rpartition(":")[2]
        (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {at.params['host_pubkey']}\n")
        (tmp_path / "up.txt").write_text("uploaded")
        batch = f"put {tmp_path}/up.txt\nln -s up.txt link\nls -l\nget link {tmp_path}/down.txt\n"
        options = [
            f"-oPort={port}",
            f"-oUserKnownHostsFile={tmp_path}/known",
            "-F/dev/null",
            f"-i{key}",
        ]
        sftp = await asyncio.create_subprocess_exec(
            *["sftp", "-b", "-", *options, "agent@127.0.0.1"],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await sftp.communicate(batch.encode())
        assert sftp.returncode == 0, said
        assert (tmp_path / "down.txt").read_text() == "uploaded"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"guest_path": "/etc"}, "guest_path"),
        ({"guest_path": "/"}, "guest_path"),
        ({"guest_path": "here"}, "guest_path"),
        ({"allowed_hosts": ["pypi.org"]}, "network=True"),
        ({"peers": [Peer("a", 1111), Peer("a", 2222)]}, "names of their own"),
    ],
)
def test_declarations_that_cannot_work_are_refused(options, problem):
    with pytest.raises(UsageError, match=problem):
        Environment("place").workspace(**options)


def test_limits_peers_and_mounts_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(UsageError, match="memory_mb"):
        WorkspaceLimits(memory_mb=0)
    for wrong in (("No", 1111), ("a", 80), ("a", 1111, "nowhere"), ("localhost", 1111)):
        with pytest.raises(UsageError, match="eer"):
            Peer(*wrong)
    with pytest.raises(UsageError, match="no .*nothing"):
        Mount(tmp_path / "nothing", "/data")
    with pytest.raises(UsageError, match="target"):
        Mount(tmp_path, "/usr")
    assert Network(peers=(Peer("a", 1111),)).hosts() == {"a": "127.0.1.1"}


async def test_without_bubblewrap_the_sentence_names_the_cure(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    env = Environment("place")
    env.workspace()
    with pytest.raises(EnvironmentFault, match="scripts/setup-worlds"):
        await env.run().open()


async def test_it_works_without_control_groups(monkeypatch, tmp_path):
    monkeypatch.setattr(cgroups, "MOUNTS", tmp_path / "none")
    async with workspace(limits=WorkspaceLimits(memory_mb=100)) as (shell, client):
        assert shell.opened.sandbox.launch.group is None
        hog = await client.run("python3 -c 'x = bytearray(1 << 28)'")
        assert "MemoryError" in hog.stderr
        assert (await client.run("echo fine")).stdout == "fine\n"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_it_works_for_an_ordinary_user(tmp_path):
    async def use():
        async with workspace() as (shell, client):
            assert (await client.run("id -un; echo x > file; cat file")).stdout == "agent\nx\n"
            assert (await shell.opened.observe())["files"]["files_changed"] == 1
            assert (shell.opened.sandbox.launch.user is None) == (os.geteuid() != 0)

    # Everything is loaded before: that user may not be able to read this one's interpreter.
    asyncio.run(use())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            asyncio.run(use())
            status = 0
        except BaseException as error:
            print(repr(error), file=sys.__stderr__)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


async def test_the_port_is_the_loopbacks_alone():
    async with workspace() as (shell, _):
        port = shell.opened.server.port
        other = socket.gethostbyname(socket.gethostname())
        if not other.startswith("127."):
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((other, port), 2)


async def test_agent_programs_are_mounted_read_only_at_their_paths(tmp_path, monkeypatch):
    tool = tmp_path / "tools" / "greet"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho hello\n")
    tool.chmod(0o755)
    for folder in (tool, *tool.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    monkeypatch.setenv("HUD_PROGRAMS", f"{tool}:/usr/bin/env:/nowhere/at/all")
    async with workspace() as (shell, _):
        greeted = await shell.bash(f"{tool}; echo > {tool}; ls {tool.parent}")
    assert greeted.stdout == "hello\ngreet\n"
    assert "Read-only" in greeted.stderr


async def test_a_large_process_does_not_copy_its_page_tables_to_start_a_workspace(monkeypatch):
    """Options for a user or for code before the program make `subprocess` fork: 300 ms for 1.5 GB, in the event loop."""
    started = []
    start = asyncio.create_subprocess_exec

    async def recorded(*command, **options):
        started.append(set(options) & {"user", "group", "extra_groups", "preexec_fn", "umask"})
        return await start(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", recorded)
    env = Environment("large")
    env.workspace()
    async with env.run():
        pass
    assert started == [set()]
