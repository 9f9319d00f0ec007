"""Synchronous scripts: `hud.run`, and the README's training loop as printed."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hud
from hud.client import connect, disconnect
from hud.errors import UsageError

README = (Path(__file__).parents[2] / "README.md").read_text()
(LOOP,) = re.findall(r"Or in Python:\n\n```python\n(.*?)```", README, re.DOTALL)

TASKS = """
from hud import Environment

env = Environment("letters")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield 1.0 if len(answer) > 5 else 0.0


tasks = [say(word=word) for word in ("red", "blue")]
"""
SIZES = {"vocab_size": 290, "hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 48}


async def _loop():
    return asyncio.get_running_loop()


def script(code, folder):
    """Run a script of its own process; returns what it printed. Nothing may be said on standard error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env={**os.environ, "HUD_HOME": str(folder / "home"), "HUD_API_URL": ""},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_readmes_loop_runs_as_printed_until_the_policy_has_converged(tmp_path, monkeypatch):
    """Also where no group has signal: the reward is that of answers which a random policy gives always or never."""
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    (tmp_path / "tasks.py").write_text(TASKS)
    made = {"name": "mine", "texts": ["say red blue"] * 3, "sizes": SIZES}
    asyncio.run(connect().post("/v2/models/create", made))
    disconnect(tmp_path / "home")
    lines = script(LOOP, tmp_path).splitlines()
    assert len(lines) == 20
    told = r"step \d+: reward [01]\.\d{3}, [0-2] of 2 groups had signal(, nothing applied)?"
    assert all(re.fullmatch(told, line) for line in lines), lines
    applied = [line for line in lines if "nothing applied" not in line]
    assert 0 < len(applied) < 20, "some steps learn, and some have no signal"
    assert lines[-1].startswith(f"step {len(applied)}:")


def test_the_calls_of_a_script_share_one_event_loop_and_leave_nothing_behind(tmp_path):
    code = """
import asyncio, hud

async def loop():
    return asyncio.get_running_loop()

async def leave():
    asyncio.create_task(asyncio.sleep(3600))
    await asyncio.to_thread(print, "left")

first = hud.run(loop())
hud.run(leave())
print(hud.run(loop()) is first)
"""
    assert script(code, tmp_path) == "left\nTrue\n"


def test_an_interrupt_cancels_the_call(tmp_path):
    code = """
import asyncio, os, signal, hud

signal.signal(signal.SIGINT, signal.default_int_handler)  # A job in the background of a shell ignores it.

async def work():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
    finally:
        print("cleaned up")

try:
    hud.run(work())
except KeyboardInterrupt:
    print("interrupted")
"""
    assert script(code, tmp_path) == "cleaned up\ninterrupted\n"


async def test_inside_an_event_loop_the_error_says_to_await():
    with pytest.raises(UsageError, match="in a notebook or an async function, write `await`"):
        hud.run(_loop())


def test_what_is_no_call_is_refused():
    with pytest.raises(UsageError, match="asynchronous call, such as .* not 'list'"):
        hud.run([])
