"""Workers on a Ray cluster: Ray places and restarts them, and no rollout is lost or counted twice."""

import json
import random
import signal
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray", reason="scripts/setup-integration ray")

from tests.fleet.deployed_server import deployed_server, start_engine
from tests.fleet.test_remote_rollouts import AGENT, ENV, job_of
from tests.integrations.ray.ray_cluster import RayCluster, hud, until

from hud.trace import dashed, new_id

GROUP = 16
NOTICE_SECONDS = 20
"""Time from the notice to the end of a node."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with deployed_server(tmp_path_factory.mktemp("ray"), {"echo": ENV}, workers=0) as made:
        start_engine(made)
        yield made


@pytest.fixture
def cluster():
    with RayCluster() as made:
        yield made


@pytest.fixture
def fleet(server, cluster, tmp_path):
    made = Fleet(server, cluster, tmp_path)
    yield made
    made.down_if_up()


class Fleet:
    """The command `hud fleet ray`, on a test's cluster."""

    def __init__(self, server, cluster, tmp_path):
        self.server, self.cluster = server, cluster
        self.cache = tmp_path / "cache"
        self.is_up = False
        with server.client() as api:
            made = api.post("/v2/fleet-passes", json={"name": f"ray {new_id()[:6]}"}).json()
        self.key = made["key"]

    def up(self, *arguments, code=0, key=None):
        self.is_up = code == 0
        return self.ray(
            "up", self.server.url, "--cache", str(self.cache), *arguments, code=code, key=key
        )

    def down(self):
        self.is_up = False
        return self.ray("down")

    def down_if_up(self):
        if self.is_up:
            self.down()

    def status(self):
        return json.loads(self.ray("status", "--json"))

    def states(self):
        return Counter(host["state"] for host in self.status()["hosts"])

    def ray(self, action, *arguments, code=0, key=None):
        given = [action, *arguments, "--address", self.cluster.address]
        return hud("fleet", "ray", *given, code=code, HUD_API_KEY=key or self.key)

    def living(self):
        """Return the nodes of this cluster that the platform knows and that play.

        Those that an earlier cluster killed are not lost yet for the platform.
        """
        with self.server.client() as api:
            items = api.get("/v2/fleet-nodes").json()["items"]
        ours = {identifier[:6] for identifier in self.cluster.known}
        playing = [one for one in items if one["status"] not in ("left", "lost")]
        return {one["name"]: one for one in playing if one["name"].rpartition("-")[2] in ours}


class Batch:
    """Rollouts of one job, in groups."""

    def __init__(self, server, count, seconds):
        """Each awaits `seconds`, give or take half of it, before the model's turn."""
        chance = random.Random(0)
        self.server, self.job = server, new_id()
        self.groups = defaultdict(list)
        for number in range(count):
            self.groups[number // GROUP].append(new_id())
        with server.client() as api, ThreadPoolExecutor(8) as pool:
            tasks = []
            for traces in self.groups.values():
                group = dashed(new_id())
                for attempt, trace in enumerate(traces):
                    body = {
                        "trace_id": dashed(trace),
                        "job_id": dashed(self.job),
                        "group_id": group,
                        "attempt": attempt,
                        "env": "echo",
                        "task": "say",
                        "slug": "say",
                        "args": {"seconds": seconds * chance.uniform(0.5, 1.5)},
                        "agent": AGENT
                        | {"config": {"model": "m", "completion_kwargs": {"max_tokens": 1}}},
                    }
                    tasks.append(pool.submit(api.post, "/v2/rollouts/submit", json=body))
            for task in tasks:
                task.result().raise_for_status()

    def graded(self):
        with self.server.client() as api:
            return job_of(api, self.job)["graded"]

    def played(self):
        with self.server.client() as api:
            return job_of(api, self.job)["status"] == "completed"

    def outcomes(self):
        """Return how all attempts ended; raises where a rollout has not exactly one result, or a group is not whole."""
        traces = [trace for traces in self.groups.values() for trace in traces]
        with self.server.client() as api, ThreadPoolExecutor(8) as pool:
            found = job_of(api, self.job)
            assert (found["runs"], found["graded"], found["reward"]) == (len(traces),) * 2 + (1.0,)
            records = list(pool.map(lambda one: api.get(f"/v2/rollouts/{one}").json(), traces))
            runs = list(pool.map(lambda one: api.get(f"/v2/trace/{one}").json(), traces))
        for record in records:
            outcomes = [one["outcome"] for one in record["attempts"]]
            assert (outcomes.count("ended"), outcomes[-1]) == (1, "ended"), record
            assert record["faults"] == 0, record
        by_group = Counter(run["group_id"] for run in runs)
        assert set(by_group.values()) == {GROUP}
        assert len({(run["group_id"], run["attempt"]) for run in runs}) == len(traces)
        return Counter(one["outcome"] for record in records for one in record["attempts"])


def empty(server):
    with server.client() as api:
        return (
            api.post("/v2/rollouts/cancel_user_jobs", json={}).json()["total_tasks_cancelled"] == 0
        )


def test_a_fleet_comes_up_plays_and_goes_down(server, cluster, fleet):
    for _ in range(2):
        cluster.add()
    assert "There is no fleet 'fleet'" in fleet.ray("status", code=2)
    assert "The supervisor cannot use" in fleet.up(key="hud_nonsense", code=2)
    said = fleet.up("--hosts", "1..2", "--rollouts", "16", "--on", "market=spot", "--notice", "1")
    assert "The fleet fleet is up: 1 of 1..2 hosts wanted, 2 nodes with market=spot" in said
    assert "is up on this cluster" in fleet.up(code=2)
    fleet.is_up = True
    until(lambda: len(fleet.living()) == 1)
    ((_, node),) = fleet.living().items()
    assert node["labels"] == {"market": "spot"}
    batch = Batch(server, 32, seconds=12.0)
    until(lambda: len(fleet.living()) == 2)  # The queue is longer than one host plays.
    until(batch.played)
    assert batch.outcomes() == {"ended": 32}
    long = Batch(server, GROUP, seconds=60.0)
    until(lambda: sum(one["running"] for one in fleet.living().values()) == GROUP)
    assert "2 hosts ended" in fleet.down()
    assert fleet.living() == {}
    with server.client() as api:
        for trace in long.groups[0]:
            record = api.get(f"/v2/rollouts/{trace}").json()
            assert [one["outcome"] for one in record["attempts"]] == ["handed back"]
        api.post("/v2/rollouts/cancel_job", json={"job_id": dashed(long.job)})
    assert "There is no fleet 'fleet'" in fleet.ray("down", code=2)


def test_workers_and_hosts_that_die_are_started_again(server, cluster, fleet):
    node = cluster.add()
    fleet.up("--hosts", "1", "--rollouts", "16", "--on", "market=spot", "--notice", "1")
    (worker,) = until(lambda: cluster.workers(node))
    until(fleet.living)
    worker.kill()
    until(lambda: [one for one in cluster.workers(node) if one.pid != worker.pid])
    # The supervisor tells what it saw in its last round.
    (host,) = until(lambda: [one for one in fleet.status()["hosts"] if one["restarts"]])
    assert (host["state"], host["restarts"]) == ("running", 1)
    # The host's own process: the worker hands back and ends with it, and Ray starts both again.
    (worker,) = cluster.workers(node)
    worker.parent().kill()
    until(lambda: [one for one in cluster.workers(node) if one.pid != worker.pid])
    until(lambda: not worker.is_running())
    batch = Batch(server, GROUP, seconds=0.1)
    until(batch.played)
    assert batch.outcomes() == {"ended": GROUP}


def test_a_supervisor_that_dies_finds_its_hosts_as_they_were(server, cluster, fleet):
    node = cluster.add()
    fleet.up("--hosts", "1", "--rollouts", "16", "--on", "market=spot", "--notice", "1")
    (worker,) = until(lambda: cluster.workers(node))
    supervisor = until(cluster.supervisor)
    supervisor.kill()
    until(lambda: cluster.supervisor() not in (None, supervisor))
    until(lambda: "playing" if "running" in hud_states(fleet) else None)
    assert [one.pid for one in cluster.workers(node)] == [worker.pid]


def hud_states(fleet):
    try:
        return fleet.states()
    except AssertionError:  # It is being restarted.
        return {}


def test_a_node_that_the_platform_drained_stays_empty(server, cluster, fleet):
    cluster.add()
    fleet.up("--hosts", "1", "--rollouts", "16", "--on", "market=spot", "--notice", "1")
    until(fleet.living)
    ((_, node),) = fleet.living().items()
    with server.client() as api:
        api.post(f"/v2/fleet-nodes/{node['id']}/drain").raise_for_status()
    until(lambda: fleet.states() == {"drained": 1})
    time.sleep(5.0)
    assert fleet.living() == {}


SIZES = [
    pytest.param(2, 16, 6.0, id="2x16"),
    pytest.param(4, 512, 8.0, id="4x512", marks=pytest.mark.slow),
]


def begin(server, cluster, fleet, nodes, rollouts, seconds):
    for _ in range(nodes):
        cluster.add()
    batch = Batch(server, nodes * rollouts, seconds)
    began = time.monotonic()
    bounds = f"1..{nodes}"
    fleet.up("--hosts", bounds, "--rollouts", str(rollouts), "--on", "market=spot", "--notice", "4")
    return batch, began


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("nodes", "rollouts", "seconds"), SIZES)
def test_nodes_that_are_lost_cost_no_result_and_count_none_twice(
    server, cluster, fleet, nodes, rollouts, seconds, record_property
):
    batch, began = begin(server, cluster, fleet, nodes, rollouts, seconds)
    total, chance = nodes * rollouts, random.Random(0)
    for lost in range(2):
        target = total // 8 * (lost + 1)
        until(lambda: batch.graded() >= target, 240)  # noqa: B023
        time.sleep(chance.random())
        cluster.lose(chance.choice(cluster.nodes))
        if lost == 0:
            cluster.add()
    until(batch.played, 240)
    record_property("seconds", took := time.monotonic() - began)
    outcomes = batch.outcomes()
    print(f"{nodes} x {rollouts}: {took:.1f} s, {dict(outcomes)}")
    assert set(outcomes) <= {"ended", "lost", "handed back"}
    assert outcomes["lost"] > 0
    assert empty(server)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("nodes", "rollouts", "seconds"), SIZES)
def test_nodes_that_get_notice_lose_no_attempt(
    server, cluster, fleet, nodes, rollouts, seconds, record_property
):
    batch, began = begin(server, cluster, fleet, nodes, rollouts, seconds)
    total, chance = nodes * rollouts, random.Random(0)
    ends = {}
    for noticed in range(2):
        target = total // 8 * (noticed + 1)
        until(lambda: batch.graded() >= target, 240)  # noqa: B023
        node = chance.choice([one for one in cluster.nodes if one not in ends])
        cluster.give_notice(node, NOTICE_SECONDS)
        ends[node] = time.monotonic() + NOTICE_SECONDS
        if noticed == 0:
            cluster.add()
    for node, end in ends.items():
        time.sleep(max(0.0, end - time.monotonic()))
        cluster.lose(node)
    until(batch.played, 240)
    record_property("seconds", took := time.monotonic() - began)
    outcomes = batch.outcomes()
    print(f"{nodes} x {rollouts}: {took:.1f} s, {dict(outcomes)}")
    assert set(outcomes) <= {"ended", "handed back"}
    assert empty(server)


@pytest.mark.timeout(600)
def test_a_raylet_that_gets_sigterm_loses_no_attempt(server, cluster, fleet):
    batch, _ = begin(server, cluster, fleet, 2, 16, 8.0)
    until(lambda: sum(one["running"] for one in fleet.living().values()) == 32, 120)
    cluster.terminate(cluster.nodes[0])
    cluster.add()
    until(batch.played, 120)
    assert set(batch.outcomes()) == {"ended", "handed back"}


def test_nothing_of_a_cluster_outlives_a_test_that_fails():
    with pytest.raises(ZeroDivisionError), RayCluster() as made:
        made.add()
        raylet = made.nodes[0].all_processes["raylet"][0].process
        assert made._processes()
        1 / 0  # noqa: B018
    assert made._processes() == []
    assert raylet.wait(10) in (-signal.SIGKILL, -signal.SIGTERM, 0)
