"""Environments that are container images, on nodes whose docker does not know them: fetched over HTTP, whole or not at all."""

import hashlib
import io
import json
import tarfile

import httpx
import pytest
from tests.fleet.deployed_server import deploy, wait
from tests.fleet.docker_stand_in import stand_in
from tests.fleet.joined_node import JoinedNode
from tests.fleet.live_server import LiveServer

from hud.errors import EnvironmentFault, InfrastructureFault, UsageError
from hud.eval.runtimes.containers.images import save_image
from hud.fleet.builds.build_cache import BuildCache
from hud.trace import dashed, new_id

ENV = """
import os
from hud import Environment
env = Environment("shop")

@env.template()
async def buy(item: str = "pear"):
    yield os.environ.get("TOKEN", "none")
    yield 1.0
"""


def calls(state, command):
    """The arguments of a stand-in's calls of one command."""
    path = state / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [call for call, _ in map(json.loads, lines) if call[0] == command]


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """The state of a docker of this machine."""
    state = tmp_path / "docker"
    for name, value in stand_in(tmp_path / "bin", state).items():
        monkeypatch.setenv(name, value)
    return state


class Shelf:
    """A platform with one archive of an image."""

    def __init__(self, files, damaged=False):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w:gz") as tar:
            for name in files:
                tar.addfile(tarfile.TarInfo(f"{name}/env.py"))
        self.content, self.asked = file.getvalue(), 0
        self.digest = "0" * 64 if damaged else hashlib.sha256(self.content).hexdigest()

    async def get(self, path):
        self.asked += 1
        return {"digest": self.digest, "size": len(self.content)}

    async def download(self, path):
        yield self.content


async def test_an_image_is_fetched_once_and_not_where_docker_has_it(docker, tmp_path):
    shelf, said = Shelf(["hud_shop_1"]), []
    cache = BuildCache(tmp_path / "cache", shelf, said.append)
    for _ in range(3):
        await cache.load_image("shop", "b" * 32, "hud/shop:1")
    await BuildCache(tmp_path / "other", shelf, said.append).load_image("shop", "b", "hud/shop:1")
    assert (shelf.asked, len(calls(docker, "load"))) == (1, 1)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
async def test_what_is_damaged_or_holds_another_image_is_not_used(docker, tmp_path):
    damaged = BuildCache(tmp_path / "cache", Shelf(["hud_shop_1"], damaged=True), print)
    with pytest.raises(InfrastructureFault, match="damaged"):
        await damaged.load_image("shop", "b" * 32, "hud/shop:1")
    assert calls(docker, "load") == []
    another = BuildCache(tmp_path / "cache", Shelf(["hud_shop_2"]), print)
    with pytest.raises(EnvironmentFault, match="does not hold the image hud/shop:1"):
        await another.load_image("shop", "b" * 32, "hud/shop:1")


def test_an_image_that_is_gone_or_too_large_is_not_saved(docker):
    with pytest.raises(InfrastructureFault, match="reference does not exist"):
        save_image("hud/shop:1", io.BytesIO(), 1 << 30)
    (docker / "hud_shop_1").mkdir()
    with pytest.raises(UsageError, match="larger than"):
        save_image("hud/shop:1", io.BytesIO(), 1000)


@pytest.mark.slow
def test_a_rollout_in_an_image_waits_for_a_node_that_runs_images_which_fetches_it(tmp_path):
    platforms, nodes = tmp_path / "platforms docker", tmp_path / "nodes docker"
    server = LiveServer(tmp_path / "home", "--workers", "0")
    server.variables = {**stand_in(tmp_path / "bin", platforms), "HUD_DOCKER": "1"}
    server.start()
    source, trace, joined = tmp_path / "shop", new_id(), []
    source.mkdir()
    (source / "env.py").write_text(ENV)
    (source / "Dockerfile.hud").write_text("FROM python:3.12\n")
    try:
        with server.client() as api:
            deploy(api, source, "shop")
            made = api.post("/v2/fleet-passes", json={"name": "spot"}).json()["key"]
            joined.append(JoinedNode(server.url, made, tmp_path / "plain"))
            joined[0].wait_for("Joined")
            agent = {"type": "openai_compatible", "config": {"model": "none"}}
            body = {"trace_id": dashed(trace), "env": "shop", "task": "buy", "agent": agent}
            api.post("/v2/rollouts/submit", json=body).raise_for_status()
            waiting = api.get(f"/v2/rollouts/{trace}").json()
            assert (waiting["status"], waiting["lacking"]) == ("queued", ["images"])
            variables = stand_in(tmp_path / "bin", nodes)
            home = tmp_path / "contained"
            joined.append(JoinedNode(server.url, made, home, "--images", variables=variables))
            wait(lambda: _status(api, trace) == "ended")
            assert api.get(f"/v2/rollouts/{trace}").json()["lacking"] == []
    finally:
        for node in joined:
            node.kill()
        server.stop()
    assert "loading the image" in joined[1].said()
    assert len(calls(platforms, "save")) == len(calls(nodes, "load")) == 1
    (run,) = calls(nodes, "run")
    assert "--pull=never" in run
    assert len(calls(nodes, "rm")) == 1


@pytest.mark.slow
def test_images_without_docker_are_refused_as_the_node_joins(tmp_path):
    variables = stand_in(tmp_path / "bin", tmp_path / "docker")
    (tmp_path / "docker" / "down").touch()
    key, home = "hud_key", tmp_path / "node"
    node = JoinedNode("http://127.0.0.1:9", key, home, "--images", variables=variables)
    assert node.process.wait(60) == 2
    assert "--images needs docker or podman on this machine" in node.said()


def _status(api: httpx.Client, trace: str) -> str:
    return api.get(f"/v2/rollouts/{trace}").json()["status"]
