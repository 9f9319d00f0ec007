"""`hud eval ENV human`, in a terminal, as a person sees it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

WORLD = '''\
from hud import Environment

env = Environment("rooms")


@env.tool
async def look(where: str = "around") -> str:
    """Look somewhere."""
    return f"{where}: a door"


@env.template()
async def escape(prompt: str = "Get out."):
    answer = yield prompt
    yield float(answer == "door")


tasks = [escape(), escape(prompt="Get out of here.")]
'''


def typed(folder, *lines):
    """Type lines at `hud eval`, one at each prompt; returns what the terminal showed, and the exit code."""
    mine, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hud.cli.main", "eval", "env.py", "human", "--all"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**os.environ, "HUD_HOME": str(folder / "home"), "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(theirs)
    shown, left, answered = "", list(lines), 0
    try:
        while chunk := _read(mine):
            shown += chunk
            if left and shown.count("> ") > answered:
                answered += 1
                os.write(mine, left.pop(0).encode() + b"\n")
        return shown, process.wait(timeout=60)
    finally:
        process.kill()
        process.wait()
        os.close(mine)


def _read(terminal):
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:  # The other side is closed.
        return ""


@pytest.mark.slow
def test_a_person_plays_two_tasks_one_after_the_other(tmp_path):
    (tmp_path / "env.py").write_text(WORLD)
    shown, code = typed(
        tmp_path, "look where=up", "answer door", json.dumps("no command"), "answer wall"
    )
    assert code == 0, shown
    assert shown.index("Get out.") < shown.index("up: a door") < shown.index("Get out of here.")
    assert "There is no '\"no'" in shown
    assert "mean reward  0.500" in shown
