"""Training on the fleet: the same seeds, groups and rewards as in the trainer's own process."""

import os
import subprocess
import sys
import time

import pytest
from tests.fleet.deployed_server import deploy
from tests.fleet.live_server import LiveServer

ENV = """
from hud import Environment
env = Environment("letters")

@env.template()
async def many(letter: str = "e"):
    answer = yield f"Write many letters {letter}."
    yield min(1.0, str(answer).count(letter) / 8)

tasks = [many(letter=letter) for letter in "aeot"]
"""
SETTINGS = (
    "--group",
    "4",
    "--tasks-per-step",
    "2",
    "--max-tokens",
    "12",
    "--seed",
    "3",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("training")
    made = LiveServer(root / "home", "--workers", "1")
    made.start()
    made.source = root / "source"
    made.source.mkdir()
    (made.source / "env.py").write_text(ENV)
    with made.client() as api:
        texts = ["Write many letters a.", "Say a word, and then another."] * 5
        for name in ("here", "there"):
            body = {"name": name, "texts": texts, "seed": 1}
            api.post("/v2/models/create", json=body).raise_for_status()
        deploy(api, made.source, "letters")
    yield made
    made.stop()


def train(server, model, *arguments):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HUD_")}
    environment = {
        **kept,
        "HUD_API_URL": server.url,
        "HUD_API_KEY": server.key,
        "HUD_HOME": str(server.home.parent / "client"),
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "-m",
        "hud.cli.main",
        "train",
        model,
        "env.py",
        *("--steps", "2", "--max-concurrent", "1"),
        *SETTINGS,
        *arguments,
    ]
    done = subprocess.run(
        command, env=environment, cwd=server.source, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with server.client() as api:
        made = api.get(
            f"/v2/models/{api.get('/v2/models/resolve', params={'model': model}).json()['id']}/checkpoints"
        )
        nodes = sorted(made.json(), key=lambda node: node["created_at"])
        return [(node["num_traces"], node["num_tokens"], node["mean_reward"]) for node in nodes]


@pytest.mark.slow
def test_training_on_the_fleet_takes_the_steps_of_local_training(server):
    here = train(server, "here")
    there = train(server, "there", "--runtime", "hosted")
    assert len(here) == 2
    assert there == here
    # Groups without signal are replaced, so there may be more than two steps' groups. A worker tells of them with its next heartbeat.
    end = time.monotonic() + 60
    while finished(server) < 16:
        assert time.monotonic() < end
        time.sleep(0.2)


def finished(server):
    """Return how many rollouts the fleet says that it has finished."""
    with server.client() as api:
        return sum(node["finished"] for node in api.get("/v2/fleet-nodes").json()["items"])


@pytest.mark.slow
def test_without_a_server_there_is_no_fleet(server):
    environment = {**os.environ, "HUD_HOME": str(server.home.parent / "embedded")}
    command = [sys.executable, "-m", "hud.cli.main", "train", "m", "env.py", "--runtime", "hosted"]
    done = subprocess.run(
        command, env=environment, cwd=server.source, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, "HUD_API_URL" in done.stderr) == (2, True), done.stderr
