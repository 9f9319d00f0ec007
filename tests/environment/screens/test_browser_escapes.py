"""What lives in a browser's box reaches nothing of this machine: no setting of the kernel, no port, no other user's file."""

import asyncio
import os
import shutil
import socket
import textwrap

import orjson
import psutil
import pytest

from hud.environment import Environment
from hud.environment.current_run import entered
from hud.environment.screens.run_folders import run_folder
from hud.environment.screens.screen_sandbox import Box, BoxedProgram
from hud.errors import EnvironmentFault

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("chromium", "bwrap")),
    reason="needs Chromium and bubblewrap (scripts/setup-worlds)",
)
ATTACKS = textwrap.dedent(
    r"""
    import ctypes, json, os, socket, sys
    found = {"written": [], "reached": [], "allowed": []}
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            path = os.path.join(folder, name)
            try:
                os.close(os.open(path, os.O_WRONLY))
                found["written"].append(path)
            except OSError:
                pass
    for path in ("/proc/sysrq-trigger", "/proc/kcore"):
        try:
            os.close(os.open(path, os.O_RDWR))
            if os.stat(path).st_rdev == 0:
                found["written"].append(path)
        except OSError:
            pass
    for port in map(int, sys.argv[1:]):
        try:
            socket.create_connection(("127.0.0.1", port), 2).close()
            found["reached"].append(port)
        except OSError:
            pass
    libc = ctypes.CDLL(None, use_errno=True)
    calls = {"unshare": (272, 0x10000000), "mount": (165, b"none", b"/tmp", b"tmpfs", 0, None), "bpf": (321, 0, None, 0),
             "keyctl": (250, 0, 0), "io_uring_setup": (425, 1, None), "ptrace": (101, 16, 1, 0, 0)}
    if os.uname().machine == "x86_64":
        for name, words in calls.items():
            if libc.syscall(*words) >= 0 or ctypes.get_errno() not in (1, 38):
                found["allowed"].append(name)
    status = open("/proc/self/status").read()
    found["filtered"] = "Seccomp:\t2" in status
    found["home"] = os.access(os.path.expanduser("~"), os.W_OK)
    print(json.dumps(found), flush=True)
    sys.stdin.read()
    """
)


@pytest.fixture
def ports():
    """Ports that this machine listens at."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    yield [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize("network", [False, True])
async def test_a_box_is_a_stranger_to_this_machine(ports, network):
    async with run_folder("box", reached_by_others=True) as folder:
        box = Box(folder, network=network, memory_tmp=True)
        program = await BoxedProgram.start(
            box, ["/usr/bin/python3", "-I", "-c", ATTACKS, *map(str, ports)]
        )
        try:
            async with asyncio.timeout(60):
                line = await program.process.stdout.readline()
            whose = psutil.Process(program.process.pid).uids().real
        finally:
            await program.end()
        assert line, await program.complaints()
        found = orjson.loads(line)
    assert found["written"] == []
    assert found["allowed"] == []
    assert found["filtered"] is True
    assert found["home"] is True
    # A display's box has this machine's network, for its VNC server; a browser's has none.
    assert found["reached"] == (ports if network else [])
    if os.geteuid() == 0:
        assert whose >= 2_000_000_000


@pytest.mark.slow
async def test_ports_that_an_environment_did_not_name_are_not_reached(ports):
    served = []

    async def serve(reader, writer):
        served.append(writer.get_extra_info("sockname")[1])
        await reader.readuntil(b"\r\n\r\n")
        body = b"<title>named</title>"
        head = f"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(2)]
    named, secret = (server.sockets[0].getsockname()[1] for server in servers)
    env = Environment("shopping")
    browser = env.browser(start_url=f"http://127.0.0.1:{named}/", viewport=(400, 300))
    async with env.run() as run:
        with entered(run):
            assert await browser.evaluate("document.title") == "named"
            addresses = (
                "127.0.0.1",
                "localhost",
                "127.1.2.3",
                "[::1]",
                "0.0.0.0",
                socket.gethostname(),
            )
            for host in addresses:
                asked = f"fetch('http://{host}:{secret}/', {{mode: 'no-cors'}}).then(() => 'reached', () => 'refused')"
                await browser.evaluate(asked)  # What the proxy says to it counts as an answer, too.
                assert secret not in served, host
            with pytest.raises(EnvironmentFault):
                await browser.page.goto(f"http://127.0.0.1:{secret}/")  # As an agent's click would.
            assert secret not in served
            await browser.goto(f"http://127.0.0.1:{secret}/")
            assert await browser.evaluate("document.title") == "named"
            with pytest.raises(EnvironmentFault, match="from 1024 on"):
                await browser.goto("http://127.0.0.1:631/")
    for server in servers:
        server.close()
