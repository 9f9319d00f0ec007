"""Desktops that break under an agent: that run alone fails, with the reason, and nothing of any run is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from hud.agents.native.computer import ComputerTool
from hud.capabilities import RFBClient
from hud.environment import Environment
from hud.environment.current_run import entered
from hud.eval import NullRecorder, Taskset
from hud.trace import ToolCall

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("Xvfb", "x11vnc", "openbox", "xterm", "bwrap")),
    reason="needs a desktop's programs (scripts/setup-worlds)",
)
LIMIT_SECONDS = 120.0
"""What no wait here comes near to, however busy the machine is."""
LOOK = {"action": "screenshot"}
CLICK = {"action": "click", "x": 200, "y": 200}


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """A temporary folder of our own: what is left in it is ours."""
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    # What is shown on a desktop belongs to another user, where we are root, who has to come to its folder; pytest closes
    # the folders that are above `tmp_path` whenever it starts.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@pytest.fixture
def note():
    """The task to write a word into a file; `end` ends programs of the run's display, by their name."""
    env = Environment("desk")
    desktop = env.desktop(programs=["xterm -geometry 80x24+20+40"], size=(640, 480))

    @env.tool
    async def end(program: str, held: bool = False) -> str:
        """End a program; with `held`, what it ran in does not get to say so."""
        box = env.opened(desktop).display.program.process.pid
        if held:
            os.kill(box, signal.SIGSTOP)
        ended = [pid for pid in below(box) if name(pid) == program]
        for pid in ended:
            os.kill(pid, signal.SIGKILL)
        await until(lambda: not any(map(alive, ended)))
        return f"ended {len(ended)}"

    @env.tool
    async def ruin(way: str) -> str:
        """Do to the display what a program of the agent's could do."""
        await desktop.write("/tmp/hostile.py", HOSTILE)
        await desktop.start(["/usr/bin/python3", "/tmp/hostile.py", way])
        await until(lambda: env.opened(desktop).display.program.ended)
        return "ended"

    @env.template()
    async def note(word: str):
        yield f"Write {word} into note.txt."
        wait = f"until grep -qs {word} note.txt; do sleep 0.05; done"
        yield float((await desktop.bash(wait, timeout=30)).exit_code == 0)

    return note


async def play(tasks, agent):
    job = await Taskset("t", tasks).run(agent, recorder=NullRecorder())
    return job.runs


async def use(run, *turns):
    """Do `turns` at the computer."""
    if "computer" not in [tool.name for tool in run.tools]:
        run.attach(ComputerTool(await run.open("rfb")))
    for number, arguments in enumerate(turns):
        call = ToolCall(id=f"c{number}", name="computer", arguments=arguments)
        await run.call_tool(call)


async def write(run):
    line = f"echo {run.task.args['word']} > note.txt\n"
    await use(run, CLICK, {"action": "type", "text": line})
    run.trace.content = "done"


async def end(run, program, **more):
    call = ToolCall(id="end", name="end", arguments={"program": program, **more})
    assert (await run.call_tool(call)).text == "ended 1"


def below(pid):
    """The ids of all processes that `pid` started, and of those that they did."""
    with contextlib.suppress(OSError):
        for each in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, each.read_text().split()):
                yield child
                yield from below(child)


def name(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()


def alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def until(condition):
    async with asyncio.timeout(LIMIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - nobody is told when a process ends
            await asyncio.sleep(0.02)


HOSTILE = r"""
import os, socket, struct, sys, time

def received(length):
    data = b""
    while len(data) < length:
        data += display.recv(length - len(data)) or sys.exit("the display has ended")
    return data

display = socket.socket(socket.AF_UNIX)
display.connect("/tmp/.X11-unix/X" + os.environ["DISPLAY"][1:])
cookie = open(os.path.expanduser("~/.Xauthority"), "rb").read()[-16:]
head = struct.pack("<BxHHHHxx", 0x6C, 11, 0, 18, 16)
display.sendall(head + b"MIT-MAGIC-COOKIE-1\0\0" + cookie)
setup = received(struct.unpack("<6xH", received(8))[0] * 4)
base, mask = struct.unpack("<II", setup[4:12])
vendor, formats = struct.unpack("<16xH3xB", setup[:22])
at = 32 + (vendor + 3) // 4 * 4 + 8 * formats
root, = struct.unpack("<I", setup[at : at + 4])
if sys.argv[1] == "disconnect":
    for client in range(256):
        for resource in range(64):
            if client << 21 != base & ~mask:
                display.sendall(struct.pack("<BxHI", 113, 2, client << 21 | resource))  # KillClient
else:
    for number in range(64):
        pixmap, context, side = base + 2 * number, base + 2 * number + 1, 8192
        display.sendall(struct.pack("<BBHIIHH", 53, 24, 4, pixmap, root, side, side))  # CreatePixmap
        display.sendall(struct.pack("<BxHIII", 55, 4, context, pixmap, 0))  # CreateGC
        display.sendall(struct.pack("<BxHIIhhHH", 70, 5, pixmap, context, 0, 0, side, side))  # PolyFillRectangle
    display.sendall(struct.pack("<BxHI", 15, 2, root))  # QueryTree: its reply comes after all of these.
    received(32)
time.sleep(600)
"""


@pytest.mark.parametrize("way", ["disconnect", "exhaust"])
async def test_a_display_that_the_agents_programs_end_is_the_agents_failure(way, note):
    async def agent(run):
        await use(run, LOOK)
        call = ToolCall(id="ruin", name="ruin", arguments={"way": way})
        await run.call_tool(call)
        await use(run, LOOK)

    (run,) = await play([note(word="lamp")], agent)
    assert (run.failure_kind, run.reward) == ("agent", 0.0), run.error
    assert "'desk': 'desktop': the display " in run.error


@pytest.mark.slow
@pytest.mark.parametrize("program", ["Xvfb", "x11vnc"])
async def test_a_display_that_is_killed_fails_its_run_alone(program, note, folder):
    at_once = asyncio.Barrier(2)

    async def agent(run):
        await use(run, LOOK)
        async with asyncio.timeout(LIMIT_SECONDS):
            await at_once.wait()
        if run.task.args["word"] == "murder":
            await end(run, program)
            await use(run, *[LOOK] * 3)
        await write(run)

    lamp = note(word="lamp").model_copy(update={"slug": "lamp"})
    killed, other = await play([note(word="murder"), lamp], agent)
    assert (killed.failure_kind, killed.reward) == ("environment", None)
    assert "'desk': 'desktop': the display " in killed.error
    assert (other.reward, other.error) == (1.0, None)
    (later,) = await play([lamp], write)
    assert (later.reward, later.error) == (1.0, None)
    assert list(folder.iterdir()) == []


async def test_a_display_that_is_gone_fails_its_run_before_its_process_has_ended(note):
    async def agent(run):
        await end(run, "x11vnc", held=True)
        run.trace.content = "done"

    (run,) = await play([note(word="lamp")], agent)
    assert (run.failure_kind, run.reward) == ("environment", None)
    assert "'desk': 'desktop': the display is gone" in run.error


@pytest.mark.slow
async def test_programs_are_seen_and_listen_when_a_run_begins():
    env = Environment("desk")
    desktop = env.desktop(programs=["xterm -T note -e sleep 1000"], size=(640, 480))

    async def seen():
        async with env.run() as run:
            with entered(run):
                found = await desktop.bash("xdotool getactivewindow getwindowname")
                return found.stdout.strip() or found.stderr

    # Several at once, for a window that comes before the window manager is ready is lost.
    assert await asyncio.gather(*(seen() for _ in range(4))) == ["note"] * 4


@pytest.mark.slow
async def test_no_program_on_a_desktop_commands_its_display():
    env = Environment("desk")
    desktop = env.desktop(size=(640, 480))
    async with env.run() as run:
        with entered(run):
            asked = await desktop.bash("timeout 5 x11vnc -Q rfbport")
            assert "rfbport:" not in asked.stdout
            await desktop.bash("timeout 5 x11vnc -R stop")
            again = await RFBClient.connect(env.opened(desktop).capability)
            await again.close()
            assert env.opened(desktop).fault() is None


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancelled", "raised"])
async def test_nothing_is_left_of_a_run_that_ends_badly(how, note, folder):
    waits, inside = asyncio.Event(), {}
    # What tests before this one keep, such as processes to fork from.
    others = set(below(os.getpid()))

    async def agent(run):
        await use(run, CLICK, {"action": "type", "text": "(setsid sleep 4321 &)\n"})
        # Everything that the run started, for there is no other run.
        inside.update({pid: name(pid) for pid in below(os.getpid()) if pid not in others})
        if how == "raised":
            raise RuntimeError("the agent broke")
        waits.set()
        await asyncio.Event().wait()

    playing = asyncio.create_task(play([note(word="lamp")], agent))
    if how == "cancelled":
        async with asyncio.timeout(LIMIT_SECONDS):
            await waits.wait()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
    else:
        (run,) = await playing
        assert (run.failure_kind, "the agent broke" in run.error) == ("agent", True)
    assert {"Xvfb", "x11vnc", "xterm", "openbox"} <= set(inside.values())
    await until(lambda: not any(map(alive, inside)))
    assert list(folder.iterdir()) == []
