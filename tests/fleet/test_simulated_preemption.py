"""The simulator, against a real job whose machines are killed at a rate: equal wall time within 15%.

Both are given the same times of preemption (`preemption.moments`), as one run of a random process says nothing of its mean.
"""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from itertools import takewhile

import pytest
from tests.fleet.deployed_server import deployed_server, wait
from tests.fleet.joined_node import JoinedNode
from tests.fleet.test_remote_rollouts import ENV, job_of, submit

from hud.trace import new_id, parse_trace
from hud.train.planning.measured import measure
from hud.train.planning.preemption import Preemption, moments
from hud.train.planning.simulation import Setup, simulate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NODES, ROOM, ROLLOUTS = 3, 4, 96
SECONDS = 3.0
"""Of each rollout, in its environment."""
RATE = 120.0
"""Preemptions of a node an hour."""
SEED = 5
"""Times of preemption at which a second more or less changes little. At others, one of a job's last rollouts ends just before a
preemption or is lost to it, and the lease of 30 s makes that a third of the wall time."""
WITHIN = 0.15


class Fleet:
    """Nodes that join one server, share a cache, and are killed."""

    def __init__(self, server, root):
        self.server, self.root = server, root
        self.nodes = {}
        self.joined = 0
        with server.client() as api:
            made = api.post("/v2/fleet-passes", json={"name": "spot"})
            self.key = made.json()["key"]

    def join(self, number):
        self.joined += 1
        self.nodes[number] = JoinedNode(
            self.server.url,
            self.key,
            self.root / f"{number}-{self.joined}",
            *("--rollouts", str(ROOM), "--cache", str(self.root / "cache")),
        )

    def kill(self, number):
        self.nodes[number].kill()

    def end(self):
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("preempted")
    with deployed_server(root, {"echo": ENV}, workers=0) as made:
        yield made


@pytest.fixture
def fleet(server, tmp_path):
    made = Fleet(server, tmp_path)
    yield made
    made.end()


def play(api, count, seconds, losses=(), lose=None):
    """Play a job, calling `lose` with the number of each `(time, number)` of `losses`; returns its traces and wall time."""
    job, due = new_id(), list(losses)
    began = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        traces = list(pool.map(lambda _: submit(api, job, after=seconds), range(count)))
    while job_of(api, job)["status"] != "completed":
        while due and time.monotonic() - began >= due[0][0]:
            lose(due.pop(0)[1])
        assert time.monotonic() - began < 300
        time.sleep(0.1)
    return traces, time.monotonic() - began


def recorded(api, trace):
    whole = api.get(f"/v2/trace/{trace}/full").json()
    times = (
        datetime.fromisoformat(whole["run"][name]).timestamp()
        for name in ("started_at", "ended_at")
    )
    started, ended = times
    return started, parse_trace(whole["trace"]), ended


def test_a_job_on_machines_that_are_killed_takes_as_long_as_the_simulated_one(server, fleet):
    with server.client() as api:
        # How long a machine is away: until the first rollout on one that was just started, with the build in its cache.
        fleet.join(0)
        play(api, 1, 0.0)
        fleet.kill(0)
        joined = time.time()
        fleet.join(0)
        traces, _ = play(api, 1, 0.0)
        away = recorded(api, traces[0])[0] - joined
        for number in range(1, NODES):
            fleet.join(number)
        wait(lambda: all("Joined" in node.said() for node in fleet.nodes.values()))
        play(api, NODES * ROOM, 0.5)  # Every node has its build ready.

        traces, calm = play(api, ROLLOUTS, SECONDS)
        measured = measure([recorded(api, trace) for trace in traces], [0.0])
        setup = Setup(
            steps=1,
            group=1,
            tasks_per_step=ROLLOUTS,
            environments=NODES * ROOM,
            shared_device=False,
            nodes=NODES,
            seed=SEED,
        )
        undisturbed = simulate(measured, setup)

        losses = sorted(
            (moment, number)
            for number in range(NODES)
            for moment in takewhile(lambda one: one < 300, moments(RATE, SEED, "node", number))
        )

        def lose(number):
            fleet.kill(number)
            fleet.join(number)

        traces, real = play(api, ROLLOUTS, SECONDS, losses, lose)
        event = Preemption(nodes_per_hour=RATE, node_away=away)
        found = simulate(measured, Setup(**{**vars(setup), "preemption": event}))
        attempts = [api.get(f"/v2/rollouts/{trace}").json()["attempts"] for trace in traces]
        lost = sum(one["outcome"] == "lost" for each in attempts for one in each)
        killed = sum(moment < real for moment, _ in losses)
        print(
            f"\nundisturbed: {calm:.1f} s, simulated {undisturbed.seconds:.1f} s ({undisturbed.seconds / calm:.2f} of it); "
            f"{killed} preemptions, away {away:.1f} s: {real:.1f} s, {lost} attempts lost; simulated {found.seconds:.1f} s "
            f"({found.seconds / real:.2f} of it), {found.lost} lost"
        )
    assert killed >= 2
    assert lost > 0
    assert undisturbed.seconds == pytest.approx(calm, rel=WITHIN)
    assert found.seconds == pytest.approx(real, rel=WITHIN)
