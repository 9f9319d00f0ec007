"""Machines that join the fleet with a pass: they fetch what they play, and come and go."""

import os
import signal
import subprocess
import sys
import time

import pytest
from tests.fleet.deployed_server import deployed_server, start_engine, wait
from tests.fleet.joined_node import JoinedNode
from tests.fleet.slow_proxy import SlowProxy
from tests.fleet.test_remote_rollouts import ENV, job_of, submit

from hud.trace import dashed, new_id


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with deployed_server(tmp_path_factory.mktemp("nodes"), {"echo": ENV}, workers=0) as made:
        start_engine(made)
        yield made


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


@pytest.mark.slow
def test_a_worker_whose_server_is_gone_ends_within_seconds(tmp_path):
    with deployed_server(tmp_path, {"echo": ENV}, workers=0, model=None) as server:
        with server.client() as api:
            key = api.post("/v2/fleet-passes", json={"name": "spot"}).json()["key"]
            node = JoinedNode(server.url, key, tmp_path / "node", "--rollouts", "4")
            node.wait_for("Joined")
            trace = submit(api, new_id(), seconds=600.0)
            wait(lambda: record(api, trace)["status"] == "running")
        server.kill()
        node.process.send_signal(signal.SIGTERM)
        assert node.stop(60.0) == 0
        server.start()


@pytest.mark.slow
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
        progress = ("Joined", "waiting for its build", "fetching", "installing", "ready after")
        places = [node.said().index(one) for one in (*progress, "The first rollout ended")]
        assert places == sorted(places)
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


def played_steps(api, trace):
    return api.get(f"/v2/trace/{trace}/full").json()["trace"]["steps"]


@pytest.mark.slow
def test_a_notice_lets_what_is_nearly_over_end_and_hands_back_the_rest(server, join):
    with server.client() as api:
        job = new_id()
        node = join("--rollouts", "4", "--notice", "6", "--name", "leaving")
        short = submit(api, job, seconds=5.0)
        long = submit(api, job, seconds=40.0)
        wait(lambda: "echo: ready" in node.said())
        running = lambda: [record(api, one)["status"] for one in (short, long)]  # noqa: E731
        wait(lambda: running() == ["running", "running"])
        waiting = submit(api, job, seconds=0.0)
        wait(lambda: state(api, waiting)["status"] == "completed")
        began = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - began < 20
        # Handed back in order: it waits at once, and not until a lease runs out.
        found = record(api, long)
        assert (found["status"], found["faults"], found["preemptions"]) == ("queued", 0, 1)
        assert [one["outcome"] for one in found["attempts"]] == ["handed back"]
        assert record(api, short)["attempts"][-1]["outcome"] == "ended"
        assert state(api, short)["reward"] == 1.0
        api.post("/v2/rollouts/cancel_job", json={"job_id": dashed(job)}).raise_for_status()


@pytest.mark.slow
def test_steps_are_seen_while_they_happen_and_a_lost_machine_leaves_none(server, join):
    with server.client() as api:
        job = new_id()
        node = join("--rollouts", "2", "--name", "lost")
        trace = submit(api, job, seconds=0.0, after=60.0)
        wait(lambda: any(step["source"] == "agent" for step in played_steps(api, trace)))
        assert state(api, trace)["status"] == "running"
        node.kill()
        join("--rollouts", "2", "--name", "next", home="next")
        wait(
            lambda: (
                [one["outcome"] for one in record(api, trace)["attempts"]] == ["lost", "running"]
            )
        )
        (first, second) = record(api, trace)["attempts"]
        assert (first["node"], second["node"]) == ("lost", "next")
        (shown,) = [n for n in api.get("/v2/fleet-nodes").json()["items"] if n["name"] == "lost"]
        assert (shown["status"], shown["preemptions"]) == ("lost", 1)
        wait(lambda: any(step["source"] == "agent" for step in played_steps(api, trace)))
        numbers = [step["step_id"] for step in played_steps(api, trace)]
        assert numbers == sorted(set(numbers))
        api.post("/v2/rollouts/cancel_job", json={"job_id": dashed(job)}).raise_for_status()


@pytest.mark.slow
def test_machines_that_are_killed_again_and_again_lose_no_rollout_and_count_none_twice(
    server, join
):
    with server.client() as api:
        job = new_id()
        traces = [submit(api, job, seconds=0.5) for _ in range(60)]
        for number in range(3):
            node = join("--rollouts", "8", "--name", f"spot-{number}", home=f"spot-{number}")
            target = job_of(api, job)["graded"] + 8
            wait(lambda: job_of(api, job)["graded"] >= target)  # noqa: B023
            node.kill()
        join("--rollouts", "8", "--name", "steady", home="steady")
        wait(lambda: job_of(api, job)["status"] == "completed", 180)
        found = job_of(api, job)
        assert (found["runs"], found["graded"], found["reward"]) == (60, 60, 1.0)
        for trace in traces:
            steps = played_steps(api, trace)
            assert [step["step_id"] for step in steps] == list(range(1, len(steps) + 1))
            assert sum(step["source"] == "agent" for step in steps) == 1
            assert record(api, trace)["faults"] == 0


@pytest.mark.slow
def test_a_revoked_pass_ends_its_workers_and_a_drained_node_leaves(server, join):
    with server.client() as api:
        node = join("--name", "drained")
        named = lambda name: [  # noqa: E731
            one for one in api.get("/v2/fleet-nodes").json()["items"] if one["name"] == name
        ]
        wait(lambda: named("drained"))
        api.post(f"/v2/fleet-nodes/{named('drained')[0]['id']}/drain").raise_for_status()
        assert node.process.wait(30) == 0
        assert named("drained")[0]["status"] == "left"
        refused = join("--name", "refused", home="refused")
        wait(lambda: named("refused"))
        passes = api.get("/v2/fleet-passes").json()["items"]
        api.delete(f"/v2/fleet-passes/{passes[0]['id']}").raise_for_status()
        assert refused.process.wait(30) == 2
        assert "refuses this worker" in refused.said()


@pytest.mark.slow
def test_a_worker_that_gets_sigusr1_ends_when_what_it_plays_is_over(server, join):
    with server.client() as api:
        job = new_id()
        node = join("--rollouts", "2", "--notice", "0", "--name", "surplus")
        trace = submit(api, job, seconds=4.0)
        # A rollout whose answer is still on its way to the node goes back into the queue.
        wait(lambda: "echo: ready" in node.said())
        node.process.send_signal(signal.SIGUSR1)
        assert node.process.wait(30) == 0
        assert [one["outcome"] for one in record(api, trace)["attempts"]] == ["ended"]
        assert "Draining" in node.said()


@pytest.mark.slow
def test_a_child_worker_hands_back_and_ends_when_its_parent_is_gone(server, key, tmp_path):
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HUD_")}
    command = [sys.executable, "-m", "hud.fleet.child_worker", server.url, "--rollouts", "2"]
    command += ["--notice", "60", "--name", "child", "--label", "market=spot"]
    child = subprocess.Popen(
        command,
        env={**kept, "HUD_HOME": str(tmp_path), "HUD_API_KEY": key, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        with server.client() as api:
            trace = submit(api, new_id(), seconds=60.0)
            wait(lambda: record(api, trace)["status"] == "running")
            child.stdin.close()
            child.stdout.close()
            assert child.wait(30) == 0
            (attempt,) = record(api, trace)["attempts"]
            assert (attempt["node"], attempt["outcome"]) == ("child", "handed back")
            api.post("/v2/rollouts/cancel", json={"trace_id": dashed(trace)}).raise_for_status()
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@pytest.mark.slow
def test_leases_are_renewed_while_the_platform_is_slow_to_take_steps(server, key, join, tmp_path):
    with SlowProxy(server.url, "/v2/fleet/steps", 12.0) as proxy, server.client() as api:
        job = new_id()
        traces = [submit(api, job, after=45.0) for _ in range(4)]
        node = JoinedNode(proxy.url, key, tmp_path / "far", "--rollouts", "4", "--name", "far")
        try:
            wait(lambda: {record(api, one)["status"] for one in traces} == {"running"})
            join("--rollouts", "4", "--name", "near", home="near")
            wait(lambda: job_of(api, job)["status"] == "completed", 180)
            for trace in traces:
                attempts = [(one["node"], one["outcome"]) for one in record(api, trace)["attempts"]]
                assert attempts == [("far", "ended")]
        finally:
            node.kill()
