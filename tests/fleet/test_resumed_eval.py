"""`hud eval --resume` against a server: what the interrupted process recorded and did not bring counts as played."""

import os
import subprocess
import sys
import time

import pytest
from tests.fleet.live_server import LiveServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
TASKS = """
from hud import Environment
env = Environment("words")

@env.template()
async def say(word: str):
    yield f"say {word}"
    yield 1.0

tasks = [say(word=word) for word in ("red", "green", "blue")]
"""
AGENT = """
import asyncio, pathlib
from hud.agents import ScriptedAgent

async def play(run):
    pathlib.Path("begun").touch()
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.05)
    return "a word"

agent = ScriptedAgent(play)
"""


@pytest.fixture
def server(tmp_path):
    made = LiveServer(tmp_path / "server", "--workers", "0")
    made.start()
    yield made
    made.stop()


def test_what_a_lost_server_did_not_get_is_not_played_again(server, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    (here / "tasks.py").write_text(TASKS)
    (here / "agent.py").write_text(AGENT)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HUD_")}
    ours = {"HUD_HOME": str(here), "HUD_API_URL": server.url, "HUD_API_KEY": server.key}

    def hud(*arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "hud.cli.main", *arguments],
            cwd=here,
            env={**kept, **ours},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    command = ("eval", "tasks.py", "agent.py:agent", "--all", "--json")
    first = hud(*command)
    with server.client() as api:
        while not (here / "begun").exists() or not (jobs := api.get("/v2/jobs").json()["items"]):
            assert first.poll() is None, first.communicate()[0]
            time.sleep(0.05)
        job = jobs[0]["id"]
    server.kill()
    (here / "go").touch()
    said, _ = first.communicate(timeout=120)
    assert first.returncode == 2, said

    server.start()
    said, _ = hud(*command, "--resume", job).communicate(timeout=60)
    with server.client() as api:
        runs = api.get(f"/v2/jobs/{job}/traces").json()["items"]
    assert sorted(run["slug"] for run in runs) == sorted({run["slug"] for run in runs}), said
    assert [(run["status"], run["reward"]) for run in runs] == [("completed", 1.0)] * 3
