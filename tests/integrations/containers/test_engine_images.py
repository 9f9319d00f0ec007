"""Workspaces in containers of docker or podman: files, limits, network and ends are those of every workspace."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.container_engines import BOX, imported_image, require_engine
from tests.integrations.containers.image_layouts import PROGRAMS, member, programs, workspace

from hud.environment import Peer, WorkspaceLimits
from hud.errors import EnvironmentFault, UsageError
from hud.eval.runtimes.containers.container_engine import ContainerEngine
from hud_integrations.containers import engine_image
from hud_integrations.containers.scratch_folder import _sweep

TOOLS = [
    *PROGRAMS,
    "/bin/bash",
    "/bin/sleep",
    "/usr/bin/tail",
    "/bin/ln",
    "/bin/chown",
    "/bin/stat",
]
ACCOUNTS = b"root:x:0:0::/root:/bin/sh\nother:x:7:7::/srv:/bin/sh\n"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def box():
    require_engine()
    members = [*programs(TOOLS), member("etc"), member("etc/passwd", ACCOUNTS), member("root")]
    return engine_image(imported_image(BOX, members))


def containers():
    program = require_engine().program
    listed = subprocess.run([program, "ps", "--all", "--format", "{{.Names}}"], capture_output=True, text=True)  # fmt: skip
    return {name for name in listed.stdout.split() if name.startswith("hud-")}


def kill_and_await_removal(process, before):
    """Kill a process at once, and assert that containers are as before within a minute."""
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 60
    while containers() != before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert containers() == before


def scratch_folders():
    return set(Path(tempfile.gettempdir()).glob("hud-container-*"))


async def test_commands_and_files_are_inside_and_nothing_is_left(box, tmp_path):
    before = containers()
    (tmp_path / "names.txt").write_text("joe\n")
    async with workspace(box, root=tmp_path, folders=["/tests"]) as (shell, client):
        done = await client.run(
            "cat names.txt; pwd; id -u; echo ada > names.txt; touch /bin/new; echo $HOME; ls /tests"
        )
        assert done.stdout == "joe\n/workspace\n0\n/root\n"
        assert (await shell.read("names.txt")) == b"ada\n"
        await shell.write("/tests/check.txt", "2")
        assert (
            await shell.bash("cat /tests/check.txt; chown 7 names.txt; stat -c %u names.txt")
        ).stdout == "27\n"
        await client.write("more.txt", b"3")
        assert len(containers() - before) >= 1
    assert (tmp_path / "names.txt").read_text() == "joe\n"
    async with workspace(box) as (_, client):
        assert "No such file" in (await client.run("cat names.txt /bin/new")).stderr
    assert containers() == before


async def test_what_an_agent_left_running_ends_before_the_grade(box):
    async with workspace(box) as (shell, client):
        await client.run("sleep 431 >/dev/null 2>&1 & ln -s /tests/secret link")
        listing = "cat /proc/[0-9]*/cmdline"
        assert "sleep\x00431" in (await shell.bash(listing)).stdout
        await shell.opened.begin_grading()
        assert "sleep\x00431" not in (await shell.bash(listing)).stdout
        await shell.empty("/tests")
        assert (await shell.bash("ls")).stdout == ""


async def test_memory_processes_and_files_are_limited(box):
    limits = WorkspaceLimits(memory_mb=128, processes=24, scratch_mb=8)
    async with workspace(box, limits=limits) as (shell, client):
        assert (await client.run("tail /dev/zero", timeout=60)).exit_status != 0
        assert (
            "fork"
            in (
                await client.run(
                    "for n in 1 2 3; do for m in $(cat /proc/filesystems); do sleep 3 & done; done",
                    timeout=60,
                )
            ).stderr
        )
        await shell.end_all()
        assert "No space left" in (await client.run("cat /dev/zero > /tmp/full", timeout=60)).stderr
        assert shell.opened.fault() is None


async def test_who_fills_the_memory_with_files_has_lost_and_voids_nothing(box):
    limits = WorkspaceLimits(memory_mb=64, scratch_mb=512)
    async with workspace(box, limits=limits) as (shell, client):
        await client.run("cat /dev/zero > /tmp/full", timeout=60)
        async with asyncio.timeout(30):
            while shell.opened.sandbox.problem is None:
                await client.run("cat /dev/zero > /tmp/more", timeout=10)
                await asyncio.sleep(0.1)
        assert shell.opened.fault() is None
        assert shell.opened.sandbox.launch.memory_ran_out()


async def test_the_network_is_none_or_a_list(box):
    async with workspace(box) as (_, client):
        seen = await client.run(
            "ls /sys/class/net; cat /etc/hosts /etc/resolv.conf; (echo > /dev/tcp/1.1.1.1/80) 2>&1"
        )
        assert seen.stdout.splitlines()[:3] == [
            "lo",
            "127.0.0.1 localhost workspace",
            "::1 localhost",
        ]
        assert "unreachable" in seen.stdout
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        asyncio.get_running_loop().run_in_executor(
            None, lambda: server.accept()[0].sendall(b"served\n")
        )
        async with workspace(box, peers=[Peer("db", 5432, f"127.0.0.1:{port}")]) as (_, client):
            assert (await client.run("cat < /dev/tcp/db/5432", timeout=10)).stdout == "served\n"
    async with workspace(box, network=True, allowed_hosts=["one.example"]) as (_, client):
        request = "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'CONNECT two.example:443 HTTP/1.1\r\n\r\n' >&3; cat <&3"
        port = (await client.run("echo ${https_proxy##*:}")).stdout.strip("/\n")
        refused = await client.run(request.replace("3128", port), timeout=10)
        assert "403" in refused.stdout


async def test_spares_are_up_before_a_run_and_gone_at_the_end(box):
    before = containers()
    async with workspace(box, spares=3) as (shell, client):
        async with asyncio.timeout(60):
            while len(containers() - before) < 4:  # noqa: ASYNC110 - nothing is notified
                await asyncio.sleep(0.1)
        assert (await client.run("echo in")).stdout == "in\n"
        await shell._spares.close()
    assert containers() == before


SCRIPT = """
import asyncio, sys
from hud import Environment
from hud_integrations.containers import engine_image
env = Environment("killed")
shell = env.workspace(image=engine_image(sys.argv[1]), spares=1)
async def main():
    async with env.run():
        print("up", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


def test_a_killed_process_leaves_no_container_behind(box):
    before = containers()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, BOX], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "up\n"
    assert containers() != before
    kill_and_await_removal(process, before)


def test_folders_of_killed_processes_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old, young = tmp_path / "hud-container-old", tmp_path / "hud-container-young"
    for folder in (old, young):
        folder.mkdir()
    os.utime(old, (1, 1))
    _sweep()
    assert not old.exists()
    assert young.exists()


def test_an_image_that_is_not_here_is_refused(box):
    with pytest.raises(UsageError, match="has no image 'hud-tests/missing:1'"):
        engine_image("hud-tests/missing:1")


async def test_a_container_that_cannot_start_says_why(box):
    broken = type(box)(ContainerEngine(box.engine.program), "0" * 64, "/", box.variables)
    before = scratch_folders()
    with pytest.raises(EnvironmentFault, match="A container could not be started"):
        async with workspace(broken):
            pass
    assert scratch_folders() <= before
