"""Machines that join the fleet with a pass: they fetch what they play, and come and go."""

import pytest
from tests.fleet.joined_node import JoinedNode
from tests.fleet.live_server import LiveServer
from tests.fleet.test_remote_rollouts import ENV, deploy, submit, wait

from hud.trace import dashed, new_id


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("nodes")
    made = LiveServer(root / "home", "--workers", "0")
    made.start()
    source = root / "source"
    source.mkdir()
    (source / "env.py").write_text(ENV)
    with made.client() as api:
        texts = ["Say hello.", "Say a word."] * 5
        api.post("/v2/models/create", json={"name": "m", "texts": texts}).raise_for_status()
        deploy(api, source)
        # The engine starts before the first machine joins.
        body = {
            "model": "m",
            "max_tokens": 1,
            "messages": [{"role": "user", "content": "Say a word."}],
        }
        api.post("/v1/chat/completions", json=body, timeout=300).raise_for_status()
    yield made
    made.stop()


@pytest.fixture
def key(server):
    with server.client() as api:
        made = api.post("/v2/fleet-passes", json={"name": f"spot {new_id()[:6]}"})
        made.raise_for_status()
        return made.json()["key"]


@pytest.fixture
def join(server, key, tmp_path):
    nodes = []

    def joined(*arguments, home="node"):
        node = JoinedNode(server.url, key, tmp_path / home, *arguments)
        nodes.append(node)
        return node

    yield joined
    for node in nodes:
        if node.process.poll() is None:
            node.kill()


def record(api, trace):
    return api.get(f"/v2/rollouts/{dashed(trace)}").json()


def state(api, trace):
    return api.get(f"/v2/trace/{dashed(trace)}").json()


def test_a_machine_with_an_empty_folder_joins_fetches_and_plays(server, join, tmp_path):
    with server.client() as api:
        job = new_id()
        trace = submit(api, job, word="pear")
        node = join("--rollouts", "4", "--label", "market=spot", "--name", "one")
        wait(lambda: state(api, trace)["status"] == "completed")
        whole = api.get(f"/v2/trace/{trace}/full").json()
        assert whole["run"]["reward"] == 1.0
        turn = next(step for step in whole["trace"]["steps"] if step["source"] == "agent")
        assert len(turn["sample"]["output_token_ids"]) > 0
        assert "echo: fetching" in node.said()
        assert "echo: ready" in node.said()
        (shown,) = [n for n in api.get("/v2/fleet-nodes").json()["items"] if n["name"] == "one"]
        assert (shown["status"], shown["labels"]) == ("open", {"market": "spot"})
        assert shown["capacity"]["cpus"] >= 1
        assert shown["capacity"]["rollouts"] == 4
        (attempt,) = record(api, trace)["attempts"]
        assert (attempt["attempt"], attempt["node"], attempt["outcome"]) == (1, "one", "ended")
        assert node.stop() == 0
        (shown,) = [n for n in api.get("/v2/fleet-nodes").json()["items"] if n["name"] == "one"]
        assert shown["status"] == "left"
        # The build is kept: a second worker on this cache fetches nothing.
        other = join("--cache", str(tmp_path / "node" / "fleet"), home="other")
        again = submit(api, job, word="plum")
        wait(lambda: state(api, again)["status"] == "completed")
        assert "fetching" not in other.said()
