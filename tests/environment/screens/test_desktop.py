"""Desktops: what is typed happens, each run has its own, and nothing of one is left."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from hud.agents import ScriptedAgent
from hud.capabilities import RFBClient
from hud.environment import Environment
from hud.environment.current_run import entered
from hud.errors import EnvironmentFault
from hud.eval.rollouts import rollout
from hud.trace import Completion, ToolCall, ToolStep
from hud.trace.recording.recorder import NullRecorder

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("Xvfb", "x11vnc", "openbox", "xterm", "bwrap")),
    reason="needs a desktop's programs (scripts/setup-worlds)",
)
XTERM = "xterm -geometry 80x24+20+40"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """A temporary folder of our own, so that what is left in it is ours."""
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    # What is shown on a desktop belongs to another user, where we are root, who has to come to its folder; pytest closes
    # the folders that are above `tmp_path` whenever it starts.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def desk(*programs, size=(640, 480)):
    env = Environment("desk")
    return env, env.desktop(programs=programs, size=size)


def noting(env, desktop):
    @env.template()
    async def note():
        """Write a note."""
        yield "Write hello into note.txt."
        yield float((await desktop.read("note.txt")) == b"hello\n")

    return note()


async def play(task, *turns):
    """Do each of `turns` at the computer, then answer."""

    def policy(messages, tools, trace):
        made = len(trace.tool_calls)
        if made == len(turns):
            return "done"
        call = ToolCall(id=f"c{made}", name="computer", arguments=turns[made])
        return Completion(tool_calls=[call])

    run = await rollout(
        task,
        ScriptedAgent(policy, max_steps=len(turns) + 1),
        runtime=lambda task: task.environment.run(),
        recorder=NullRecorder(),
    )
    return run, [step for step in run.trace.steps if isinstance(step, ToolStep)]


@pytest.mark.slow
async def test_what_is_typed_into_a_terminal_happens_and_is_seen_once():
    run, steps = await play(
        noting(*desk(XTERM)),
        {"action": "click", "x": 200, "y": 200},
        {"action": "type", "text": "echo hello > note.txt\n"},
        {"action": "screenshot"},
    )
    assert (run.reward, run.error) == (1.0, None)
    assert not any(step.result.is_error for step in steps)
    shown = [step.extra["screenshot"]["data"] for step in steps if "screenshot" in step.extra]
    assert len(shown) == len(set(shown)) >= 2
    patches = [step.extra["files"]["patches"] for step in steps if "files" in step.extra]
    assert [patch["path"] for each in patches for patch in each] == ["note.txt"]


@pytest.mark.slow
async def test_who_leaves_nothing_gets_nothing():
    run, _ = await play(noting(*desk(XTERM)), {"action": "screenshot"})
    assert (run.reward, run.trace.is_error) == (0.0, True)


@pytest.mark.slow
async def test_two_at_once_do_not_see_one_another(folder):
    env, desktop = desk()
    async with env.run() as one, env.run() as other:
        mine, theirs = one.parts.of(desktop), other.parts.of(desktop)
        assert mine.display.number != theirs.display.number
        with entered(one):
            await desktop.write("note.txt", "mine")
            found = await desktop.bash("ls -A /tmp/.X11-unix; xdotool getdisplaygeometry")
            assert found.stdout.splitlines() == [f"X{mine.display.number}", "640 480"]
            port = theirs.display.port
            assert (await desktop.bash(f": < /dev/tcp/127.0.0.1/{port}")).exit_code != 0
        with entered(other):
            assert (await desktop.bash("ls")).stdout == ""
    assert list(folder.iterdir()) == []


async def test_only_the_password_lets_in():
    env, desktop = desk()
    async with env.run() as run:
        capability = run.parts.of(desktop).capability
        assert (capability.protocol, capability.url[:16]) == ("rfb/3.8", "rfb://127.0.0.1:")
        for params in ({**capability.params, "password": "guessed"}, {}):
            with pytest.raises(EnvironmentFault, match="refuses the connection"):
                await RFBClient.connect(dataclasses.replace(capability, params=params))


@pytest.mark.slow
async def test_a_run_ends_whose_display_dies_and_the_next_has_its_own(folder):
    env, desktop = desk()
    async with env.run() as run:
        opened = run.parts.of(desktop)
        opened.display.program.process.kill()
        await opened.display.program.process.wait()
        assert "the display has ended" in opened.fault()
    async with env.run() as run:
        assert run.parts.of(desktop).fault() is None
    assert list(folder.iterdir()) == []


async def test_one_that_is_cancelled_leaves_nothing(folder):
    env, _ = desk(XTERM)
    opening = asyncio.create_task(env.run().open())
    while not list(folder.glob("*/sockets/X*")):  # noqa: ASYNC110 - it is another program that does it
        await asyncio.sleep(0.02)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    while list(folder.iterdir()):  # noqa: ASYNC110 - it is another program that does it
        await asyncio.sleep(0.02)
    assert not any(str(folder) in line for line in _command_lines())


async def test_a_program_that_is_not_there_is_named():
    env, _ = desk(["no-such-program", "--now"])
    with pytest.raises(EnvironmentFault, match="no-such-program.*cannot be started"):
        await env.run().open()


def _command_lines():
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                yield (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                assert os.getpid() != int(process.name)


@pytest.mark.slow
async def test_programs_can_be_ended_before_their_files_are_judged():
    env = Environment("desk")
    desktop = env.desktop(
        programs=["sh -c 'while :; do echo own > note.txt; done'"], size=(320, 240)
    )
    async with env.run() as run:
        with entered(run):
            await desktop.end_all()
            await desktop.write("note.txt", "hidden\n")
            await asyncio.sleep(0.2)
            assert await desktop.read("note.txt") == b"hidden\n"
            assert len(await desktop.screenshot()) > 0
