"""Trainers and vLLM servers on a Ray cluster: they go on elsewhere when their node is lost."""

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="scripts/setup-integration ray")

from tests.fleet.deployed_server import deployed_server, start_engine
from tests.integrations.ray.ray_cluster import RayCluster, hud, until

from hud_integrations.ray.members import ready

VLLM = str(Path(__file__).with_name("vllm_command.py"))
TASKS = """
from hud import Environment

env = Environment("words")

@env.template()
async def say(word: str):
    answer = yield f"Say {word}."
    yield float("e" in str(answer))

tasks = [say(word=word) for word in ("hello", "yes")]
"""
TRAIN = "train m tasks.py --group 2 --tasks-per-step 2 --max-tokens 4 --max-concurrent 1 --steps"


@pytest.fixture
def cluster():
    with RayCluster() as made:
        yield made


@pytest.fixture
def server(tmp_path):
    with deployed_server(tmp_path, {}, workers=0) as made:
        yield made


@pytest.fixture
def kept(cluster):
    """Return a command of `hud fleet ray` on the cluster."""

    def call(action, *arguments, code=0, **variables):
        before = arguments.index("--") if "--" in arguments else len(arguments)
        given = [*arguments[:before], "--address", cluster.address, *arguments[before:]]
        return hud("fleet", "ray", action, *given, code=code, **variables)

    return call


def states(kept):
    return {one["name"]: one for one in json.loads(kept("kept", "--json"))}


def test_a_trainer_whose_node_is_lost_goes_on_from_its_last_checkpoint(
    server, cluster, kept, tmp_path
):
    (tmp_path / "tasks.py").write_text(TASKS)
    first = cluster.add(market="on-demand")
    cluster.add()
    command = [sys.executable, "-m", "hud.cli.main", *TRAIN.split(), "40"]
    variables = ["HUD_API_URL=" + server.url, "HUD_API_KEY=" + server.key]
    variables += [f"HUD_HOME={tmp_path / 'trainer'}"]
    where = ["--on", "market=on-demand", "--folder", str(tmp_path)]
    given = ["trainer", *where, *(word for one in variables for word in ("--env", one))]
    # The head node is on demand, too, and has no processor.
    kept("keep", *given, "--cpus", "1", "--", *command)
    assert "keeps 'trainer' already" in kept("keep", *given, "--", *command, code=2)

    def steps():
        with server.client() as api:
            return [one["step"] for one in api.get("/v2/models/m/checkpoints").json()]

    until(lambda: len(steps()) >= 3, 120)
    (trainer,) = states(kept).values()
    assert trainer["state"] == "running"
    assert trainer["node"] == first.node_id
    second = cluster.add(market="on-demand")
    cluster.lose(first)
    until(lambda: states(kept)["trainer"]["state"] == "done", 240)
    assert states(kept)["trainer"]["node"] == second.node_id
    # A step whose groups have no signal makes no checkpoint.
    assert steps() == list(range(1, len(steps()) + 1))
    with server.client() as api:
        (run,) = api.get("/v2/training-runs").json()["items"]
        taken = api.get(f"/v2/training-runs/{run['id']}/steps").json()["items"]
    assert run["status"] == "finished"
    assert [one["step"] for one in taken] == list(range(40))
    assert "trainer has ended" in kept("end", "trainer")
    assert states(kept) == {}
    assert "keeps nothing named 'trainer'" in kept("end", "trainer", code=2)


def test_bad_input_is_not_tried_again(cluster, kept):
    node = cluster.add()
    kept(
        "keep", "wrong", "--on", "market=spot", "--", sys.executable, "-m", "hud.cli.main", "trane"
    )
    until(lambda: states(kept)["wrong"]["state"] == "refused")
    (wrong,) = states(kept).values()
    assert (wrong["restarts"], wrong["node"]) == (0, node.node_id)
    kept("keep", "absent", "--on", "market=spot", "--", "no-such-command")
    until(lambda: states(kept)["absent"]["restarts"] > 0)
    assert "no-such-command: No such file" in states(kept)["absent"]["said"]
    for name in ("wrong", "absent"):
        kept("end", name)
    assert "an absolute path" in kept("keep", "x", "--folder", "here", "--", "true", code=2)
    assert "which has none" in kept("keep", "x", "--env", "NO_SUCH", "--", "true", code=2)


def test_a_model_is_sampled_on_servers_that_come_and_go_with_their_nodes(server, cluster, kept):
    start_engine(server)
    with server.client() as api:
        model = api.get("/v2/models/m").json()
    folder = server.home / "models" / model["id"].replace("-", "") / "base"
    nodes = [cluster.add(), cluster.add()]
    command = ["--", sys.executable, VLLM, str(folder), "{port}"]
    where = ["--count", "2", "--on", "market=spot", "--notice", "5"]

    def serve(name, *words, code=0, key=server.key):
        return kept("serve", server.url, name, *where, *words, code=code, HUD_API_KEY=key)

    assert "needs {port}" in serve("m", "--", "vllm", "serve", code=2)
    assert "cannot be named to" in serve("nonsense", *command, code=2)
    assert "cannot be named to" in serve("m", *command, code=2, key="hud_nonsense")
    assert "The cluster keeps serve-m" in serve("m", *command)

    def urls():
        with server.client() as api:
            config = api.get("/v2/models/m").json()["config"]
        return (config["servers"] or {"urls": []})["urls"]

    def drawn():
        body = {"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "Say."}]}
        with server.client() as api:
            answer = api.post("/v1/chat/completions", json=body, timeout=120)
        return answer.status_code

    before = until(lambda: (found := urls()) and len(found) == 2 and found, 120)
    assert drawn() == 200
    cluster.lose(nodes[0])
    assert drawn() == 200
    until(lambda: len(urls()) == 1)
    cluster.add()
    after = until(lambda: (found := urls()) and len(found) == 2 and found, 120)
    assert len({*before, *after}) == 3
    assert drawn() == 200
    found = states(kept)
    assert [found[f"serve-m/{number}"]["state"] for number in range(2)] == ["ready"] * 2
    assert "2 of 2 servers sample the model" in found["serve-m"]["said"]
    assert "serve-m has ended" in kept("end", "serve-m")
    assert urls() == []
    assert drawn() == 200
    assert states(kept) == {}


def test_a_server_on_a_node_that_ends_soon_is_not_named_where_there_are_others():
    one = {"state": "ready", "node": "a", "url": "http://a:1"}
    two = {"state": "ready", "node": "b", "url": "http://b:1"}
    loading = {"state": "running", "node": "c", "url": "http://c:1"}
    assert ready([one, two, loading], frozenset()) == ("http://a:1", "http://b:1")
    assert ready([one, two], frozenset("a")) == ("http://b:1",)
    assert ready([one, loading], frozenset("a")) == ("http://a:1",)
    assert ready([loading], frozenset()) == ()
