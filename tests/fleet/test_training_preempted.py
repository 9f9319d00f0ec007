"""A training run whose workers are killed again and again learns what an undisturbed one learns."""

import asyncio
import contextlib
import time
from pathlib import Path

import psutil
import pytest
from tests.fleet.deployed_server import deploy
from tests.fleet.joined_node import JoinedNode
from tests.fleet.live_server import LiveServer

from hud.client import connect, disconnect
from hud.train.config import TrainConfig
from hud.train.loop import train

pytestmark = pytest.mark.timeout(1200)
KILL_SECONDS = 10.0
EPISODE_SECONDS = 1.0
ENV = """
import asyncio, os, pathlib
from hud import Environment
env = Environment("letters")

@env.template()
async def many(letter: str = "e", number: int = 0):
    answer = yield f"Write many letters {{letter}}."
    pathlib.Path({playing!r}, str(os.getpid())).touch()
    await asyncio.sleep({seconds})
    yield min(1.0, str(answer).count(letter) / 8)

tasks = [many(letter=letter) for letter in "aeot"]
"""
"""Its episodes leave the numbers of their processes in a folder."""
TEXTS = ["Write many letters a e o t.", "aeot eat tea oat toe ate"] * 5
SIZES = {"vocab_size": 300, "hidden": 32, "layers": 1, "heads": 2, "kv_heads": 1, "max_context": 64}
SETTINGS = {
    "runtime": "hosted",
    "steps": 8,
    "group": 4,
    "tasks_per_step": 2,
    "max_tokens": 12,
    "lr": 1e-2,
    "seed": 5,
    "eval_every": 0,
    "eval_group": 4,
}


@pytest.fixture
def server(tmp_path, monkeypatch):
    made = LiveServer(tmp_path / "home", "--workers", "0")
    made.start()
    made.source = tmp_path / "source"
    made.source.mkdir()
    made.playing = tmp_path / "playing"
    made.playing.mkdir()
    text = ENV.format(playing=str(made.playing), seconds=EPISODE_SECONDS)
    (made.source / "env.py").write_text(text)
    with made.client() as api:
        for name in ("calm", "stormy"):
            body = {"name": name, "texts": TEXTS, "sizes": SIZES, "seed": 1}
            api.post("/v2/models/create", json=body).raise_for_status()
        deploy(api, made.source, "letters")
        key = api.post("/v2/fleet-passes", json={"name": "spot"}).json()["key"]
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "client"))
    monkeypatch.setenv("HUD_API_URL", made.url)
    monkeypatch.setenv("HUD_API_KEY", made.key)
    nodes = []

    def join():
        home = tmp_path / f"node-{len(nodes)}"
        cache = ("--cache", str(tmp_path / "cache"))
        node = JoinedNode(made.url, key, home, "--rollouts", "4", "--name", home.name, *cache)
        nodes.append(node)
        return node

    made.join = join
    yield made
    disconnect(tmp_path / "client")
    for node in nodes:
        if node.process.poll() is None:
            node.kill()
    made.stop()


async def trained(server, model):
    file = str(server.source / "env.py")
    report = await train(TrainConfig(model=model, tasks=file, held_out=[file], **SETTINGS))
    assert report.finished
    return report


async def killing(server, nodes):
    """Kill a node and let another join, in turn, until cancelled; the first one amid its episodes."""
    while not plays(nodes[0], server.playing):  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    while True:
        nodes.pop(0).kill()
        nodes.append(server.join())
        await asyncio.sleep(KILL_SECONDS)


def plays(node: JoinedNode, folder: Path) -> bool:
    """Whether a process below a node began an episode a moment ago."""
    begun = {
        int(file.name)
        for file in folder.iterdir()
        if time.time() - file.stat().st_mtime < EPISODE_SECONDS / 2
    }
    below = psutil.Process(node.process.pid).children(recursive=True)
    return any(process.pid in begun for process in below)


@pytest.mark.slow
async def test_killed_workers_cost_time_and_no_score(server):
    nodes = [server.join(), server.join()]
    calm = await trained(server, "calm")
    storm = asyncio.create_task(killing(server, nodes))
    try:
        stormy = await trained(server, "stormy")
    finally:
        storm.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await storm
    found = (await connect().get("/v2/fleet-nodes"))["items"]
    preempted = sum(node["preemptions"] for node in found)
    for name, report in (("undisturbed", calm), ("workers killed", stormy)):
        scores = ", ".join(
            f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in report.scores
        )
        print(f"{name}: held out {scores}; {report.seconds:.0f} s")
    print(f"{len(found)} nodes, {preempted} attempts lost")
    assert preempted > 0
    assert calm.head is not None
    assert calm.after.low <= stormy.after.mean <= calm.after.high
    assert [one["step"] for one in stormy.history] == [one["step"] for one in calm.history]
