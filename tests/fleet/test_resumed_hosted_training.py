"""A trainer whose rollouts the fleet plays, killed at any instant: it ends with the weights of one that was not."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file
from tests.fleet.deployed_server import deploy, wait
from tests.fleet.live_server import LiveServer
from tests.fleet.test_hosted_training import ENV, SETTINGS

from hud_platform.models.checkpoint_files import SAMPLER, STATE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SLOW = """
import asyncio
from hud import Environment
env = Environment("slow")

@env.template()
async def wait(letter: str = "e"):
    await asyncio.sleep(60.0)
    yield f"Write many letters {letter}."
    yield 1.0

tasks = [wait(letter=letter) for letter in "aeot"]
"""
STEPS = 4
AT_ONCE = {"letters": 1, "slow": 4}
KILLS = 5
LONGEST_SECONDS = 8.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("resumed")
    made = LiveServer(root / "home", "--workers", "1")
    made.start()
    made.sources = root
    with made.client() as api:
        texts = ["Write many letters a.", "Say a word, and then another."] * 5
        for name in ("straight", "killed", "waiting"):
            body = {"name": name, "texts": texts, "seed": 1}
            api.post("/v2/models/create", json=body).raise_for_status()
        for name, source in {"letters": ENV, "slow": SLOW}.items():
            (root / name).mkdir()
            (root / name / "env.py").write_text(source)
            deploy(api, root / name, name)
    yield made
    made.stop()


def start(server, model, env="letters"):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HUD_")}
    environment = {
        **kept,
        "HUD_API_URL": server.url,
        "HUD_API_KEY": server.key,
        "HUD_HOME": str(server.home.parent / "client"),
        "OMP_NUM_THREADS": "1",
    }
    settings = [*SETTINGS, "--steps", str(STEPS), "--runtime", "hosted"]
    settings += ["--held-out", "env.py", "--eval-every", "2", "--max-concurrent", str(AT_ONCE[env])]
    return subprocess.Popen(
        [sys.executable, "-m", "hud.cli.main", "train", model, "env.py", *settings],
        env=environment,
        cwd=server.sources / env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(server, model):
    """Train to the end, and return the head's folder."""
    training = start(server, model)
    said, _ = training.communicate(timeout=400)
    assert training.returncode == 0, said
    with server.client() as api:
        model_id = api.get("/v2/models/resolve", params={"model": model}).json()["id"]
        nodes = api.get(f"/v2/models/{model_id}/checkpoints").json()
        head = max(nodes, key=lambda node: node["step"])
        (found,) = Path(server.home).glob(f"models/*/checkpoints/step-*-{head['id'][:6]}")
    assert found.name.startswith(f"step-{STEPS}-"), found
    return found


def rollouts_of(api, model):
    """Return how many rollouts of a model's training the platform knows."""
    jobs = api.get("/v2/jobs", params={"limit": 100}).json()["items"]
    return sum(job["runs"] for job in jobs if job["name"].startswith(model))


def workers(server):
    children = psutil.Process(server.process.pid).children(recursive=True)
    return [child for child in children if "hud.fleet.rollout_worker" in child.cmdline()]


def test_it_ends_with_the_same_weights_and_the_fleet_plays_nothing_that_was_left(server):
    expected = finish(server, "straight")
    chance = random.Random(7)
    with server.client() as api:
        for number in range(KILLS):
            before = rollouts_of(api, "killed")
            training = start(server, "killed")
            wait(lambda: rollouts_of(api, "killed") > before)  # noqa: B023
            time.sleep(chance.uniform(0.0, LONGEST_SECONDS))
            assert training.poll() is None, training.communicate()[0]
            if number % 2:
                workers(server)[0].kill()
            training.send_signal(signal.SIGKILL)
            training.communicate()
        found = finish(server, "killed")
        for job in api.get("/v2/jobs", params={"limit": 100}).json()["items"]:
            assert job["status"] != "running", job
    for file in (f"{SAMPLER}/model.safetensors", STATE):
        one, other = load_file(expected / file), load_file(found / file)
        assert one.keys() == other.keys()
        assert all(bool((one[name] == other[name]).all()) for name in one), file


def statuses(api, job):
    return [row["status"] for row in api.get(f"/v2/jobs/{job}/traces").json()["items"]]


def test_resumed_it_first_cancels_what_the_killed_process_left_behind(server):
    """Of held-out scores, too: they are the first that a run plays."""
    with server.client() as api:
        before = rollouts_of(api, "waiting")
        training = start(server, "waiting", "slow")
        wait(lambda: rollouts_of(api, "waiting") > before)
        training.kill()
        training.communicate()
        (left,) = {
            job["id"]
            for job in api.get("/v2/jobs", params={"limit": 100}).json()["items"]
            if job["name"].startswith("waiting held-out")
        }
        assert "cancelled" not in statuses(api, left)
        resumed = start(server, "waiting", "slow")
        wait(lambda: rollouts_of(api, "waiting") > len(statuses(api, left)))
        assert set(statuses(api, left)) == {"cancelled"}
        resumed.kill()
        resumed.communicate()
        api.post("/v2/rollouts/cancel_user_jobs").raise_for_status()
