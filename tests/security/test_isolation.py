"""The same attempts to escape on each runtime that promises isolation, and what the others say of theirs."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.container_engines import imported_image, require_engine
from tests.integrations.containers.image_layouts import PROGRAMS, member, programs, write_layout

from hud import Environment
from hud.capabilities.shell.ssh import SSHClient
from hud.environment import load_environment
from hud.environment.current_run import entered
from hud.environment.screens.run_folders import run_folder
from hud.environment.screens.screen_sandbox import Box, BoxedProgram
from hud.environment.workspace.sandbox.cgroups import ControlGroup
from hud.environment.workspace.sandbox.lacking import warn_without_groups
from hud.environment.workspace.sandbox.root_image import machine_program
from hud.errors import EnvironmentFault
from hud.eval import ForkRuntime, LocalRuntime, Runtime, SubprocessRuntime
from hud.eval.rollouts import rollout
from hud.fleet.environments import served
from hud.trace import ToolCall
from hud.trace.recording.recorder import NullRecorder
from hud_integrations.containers import compose_image, engine_image, image

ESCAPES = Path(__file__).with_name("escapes.py").read_text()
LEAST = 120
bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)
LIBC_KEY = 0x5EC2E7


@contextlib.contextmanager
def host(tmp_path, monkeypatch):
    """What an escape would reach; yields the settings of `escapes.py`."""
    secret = "sesame-4711"
    monkeypatch.setenv("ANTHROPIC_API_KEY", secret)
    monkeypatch.setenv("PLAIN_VARIABLE", secret)
    file = tmp_path / "secret.txt"
    file.write_text(secret)
    named = str(tmp_path / "socket")
    marker = subprocess.Popen(["sleep", "300"])
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = f"\0hud-escapes-{os.getpid()}"
        for place in (abstract, named):
            at = stack.enter_context(socket.socket(socket.AF_UNIX))
            at.bind(place)
            at.listen()
        stack.callback(marker.wait)
        stack.callback(marker.kill)
        yield {
            "backwards": secret[::-1],
            "file": str(file),
            "home": os.path.expanduser("~/.bashrc"),
            "pid": marker.pid,
            "port": listening.getsockname()[1],
            "sockets": [abstract, named],
            "shared_memory": LIBC_KEY,
        }
        assert marker.poll() is None


async def in_a_workspace(settings):
    env = Environment("cage")
    shell = env.workspace()
    async with env.run() as run:
        client = await SSHClient.connect(run.parts.of(shell).capability)
        try:
            await client.write("/tmp/escapes.py", ESCAPES)
            words = json.dumps(settings).replace("'", "'\\''")
            command = f"cd /tmp && python3 -I escapes.py '{words}' </dev/null"
            done = await client.run(command, timeout=120)
        finally:
            await client.close()
    assert done.exit_status == 0, done.stderr
    return json.loads(done.stdout)


IMAGE_TOOLS = [*PROGRAMS, "/bin/bash", "/bin/sleep", "/usr/bin/su"]


def image_members():
    """Return the members of an image with accounts, a shadow file and a set-user-ID program."""
    accounts = b"root:x:0:0::/root:/bin/sh\nother:x:7:7::/srv:/bin/sh\n"
    return [
        *programs(IMAGE_TOOLS),
        *(member(name) for name in ("etc", "root", "srv", "var", "var/log", "run")),
        member("etc/passwd", accounts),
        member("usr/bin/raised", Path("/bin/bash").read_bytes(), mode=0o4755),
    ]


async def in_an_image_s_workspace(image, settings):
    env = Environment("cage")
    shell = env.workspace(image=image)
    async with env.run() as run:
        client = await SSHClient.connect(run.parts.of(shell).capability)
        try:
            await client.write("/tmp/escapes.py", ESCAPES)
            python = machine_program(["/usr/bin/python3", "-I", "escapes.py", json.dumps(settings)])
            done = await client.run(f"cd /tmp && {shlex.join(python)} </dev/null", timeout=120)
        finally:
            await client.close()
    assert done.exit_status == 0, done.stderr
    return json.loads(done.stdout)


async def in_an_image(settings):
    with tempfile.TemporaryDirectory() as folder:
        box = image(write_layout(Path(folder) / "box", [image_members()]))
        return await in_an_image_s_workspace(box, settings)


async def in_a_container(settings):
    require_engine()
    box = engine_image(imported_image("hud-tests/escapes:1", image_members()))
    return await in_an_image_s_workspace(box, settings)


async def in_a_container_beside_services(settings):
    require_engine()
    reference = imported_image("hud-tests/escapes:1", image_members())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "docker-compose.yaml"
        service = {"image": reference, "command": "sleep 600"}
        file.write_text(json.dumps({"services": {"main": {"image": reference}, "db": service}}))
        return await in_an_image_s_workspace(compose_image(file), settings)


async def in_a_box(settings):
    async with run_folder("box", reached_by_others=True) as folder:
        box = Box(folder, network=False, memory_tmp=True)
        command = ["/usr/bin/python3", "-I", "-c", ESCAPES, json.dumps(settings)]
        program = await BoxedProgram.start(box, command)
        try:
            async with asyncio.timeout(120):
                line = await program.process.stdout.readline()
            said = await program.complaints()
        finally:
            await program.end()
    assert line, said
    return json.loads(line)


OF_THE_IMAGE = {
    "become root",
    "become root in every way",
    "write a library",
    "write a program",
    "write into the root",
    "write settings",
}
"""Attempts that reach an image's own user and the run's copies of its files, and nothing of the machine."""
PERMITTED = {
    in_a_workspace: set(),
    in_a_box: {
        "write the supervisor",
        "write memory of the first process",
    },  # It has none; it is 1.
    in_an_image: {*OF_THE_IMAGE, "write names of the machine"},
    in_a_container: {*OF_THE_IMAGE, "join the groups of root"},
    in_a_container_beside_services: {*OF_THE_IMAGE, "join the groups of root"},
}
PLANTED = ("/usr/bin/evil", "/usr/evil", "/evil", "/etc/ld.so.preload", "/lib/evil.so")


@pytest.fixture
def untouched_machine():
    """Checks afterwards that nothing was planted on the machine."""
    accounts = Path("/etc/passwd").read_bytes()
    yield
    assert [path for path in PLANTED if os.path.lexists(path)] == []
    assert Path("/etc/passwd").read_bytes() == accounts


@bubblewrap
@pytest.mark.usefixtures("untouched_machine")
@pytest.mark.parametrize("runtime", PERMITTED)
async def test_no_attempt_to_escape_succeeds(runtime, tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    with host(tmp_path, monkeypatch) as settings:
        found = await runtime(settings)
    escaped = {name: got for name, got in found.items() if got and name not in PERMITTED[runtime]}
    assert not escaped, escaped
    assert len(found) >= LEAST


SOURCE = """
import json, os, subprocess
from hud import Environment

env = Environment("looks")
runs = []

@env.tool
def look(file: str) -> str:
    shell = subprocess.run(["/bin/sh", "-c", "echo $HOST_API_KEY"], capture_output=True, text=True)
    runs.append(1)
    return json.dumps({
        "own variables": os.environ.get("HOST_API_KEY", ""),
        "variables of its shells": shell.stdout.strip(),
        "declared": os.environ.get("DECLARED", ""),
        "files": open(file).read(),
        "other runs": len(runs) > 1,
    })

@env.template()
async def task():
    yield "Work."
    yield 1.0
"""
SHARED = {
    LocalRuntime: {"own variables", "variables of its shells", "files", "other runs"},
    ForkRuntime: {"own variables", "files"},
    SubprocessRuntime: {"own variables", "files"},
}
"""What an environment's code reaches of the process that started it: the table of docs/security.md."""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_API_KEY", "sesame")
    (tmp_path / "secret.txt").write_text("sesame")
    path = tmp_path / "env.py"
    path.write_text(SOURCE)
    return path


async def looked(source, runtime):
    """Return what two runs see, one after the other."""
    seen = []

    async def agent(run):
        arguments = {"file": str(source.with_name("secret.txt"))}
        result = await run.call_tool(ToolCall(id="1", name="look", arguments=arguments))
        seen.append(json.loads(result.text))

    task = load_environment(source).templates["task"]
    for _ in range(2):
        run = await rollout(task(), agent, runtime=runtime, recorder=NullRecorder())
        assert run.error is None
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARED)
async def test_each_runtime_shares_what_the_table_says(source, kind):
    runtime = kind(source)
    try:
        _, last = await looked(source, runtime)
    finally:
        if hasattr(runtime, "aclose"):
            await runtime.aclose()
    assert {name for name, got in last.items() if got} == SHARED[kind]


@pytest.mark.slow
async def test_a_deployed_environment_gets_the_declared_variables_alone(source):
    place = served(source, Path(sys.executable), {"DECLARED": "yes"}, None)
    async with place as (host, port):
        first, _ = await looked(source, Runtime(f"tcp://{host}:{port}"))
    assert first["declared"] == "yes"
    assert (first["own variables"], first["variables of its shells"]) == ("", "")


@pytest.fixture
def refusing(monkeypatch):
    """A machine whose kernel gives no namespaces."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # The sandbox's user enters it, too.
    said = "bwrap: No permissions to create new namespace, likely because the kernel does not allow them"
    (folder / "bwrap").write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    (folder / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    yield
    shutil.rmtree(folder)


@pytest.mark.slow
async def test_without_namespaces_nothing_runs_and_the_refusal_says_why(refusing):
    env = Environment("cage")
    shell = env.workspace()
    with pytest.raises(EnvironmentFault, match="no sandbox.*files, processes and network"):
        async with env.run() as run:
            with entered(run):
                await shell.bash("true")
    async with run_folder("box", reached_by_others=True) as folder:
        program = await BoxedProgram.start(Box(folder, network=False), ["/bin/true"])
        await program.process.wait()
        assert "no sandbox" in await program.complaints()
        await program.end()


@bubblewrap
async def test_without_control_groups_a_warning_names_the_limits(monkeypatch, caplog):
    monkeypatch.setattr(ControlGroup, "create", classmethod(lambda *_: None))
    warn_without_groups.cache_clear()
    env = Environment("cage")
    shell = env.workspace()
    async with env.run() as run:
        with entered(run):
            assert (await shell.bash("echo in")).stdout == "in\n"
    assert "memory_mb limits each process" in caplog.text
