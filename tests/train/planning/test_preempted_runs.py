"""Simulated preemption, against runs that can be worked out by hand."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.train.planning.test_planning import ONE, alone, known

from hud.errors import UsageError
from hud.train.planning import simulation
from hud.train.planning.measured import Shape, Turn
from hud.train.planning.preemption import Preemption, moments
from hud.train.planning.setup import Setup
from hud.train.planning.simulation import simulate

LONG = Shape(0.0, (Turn(1, 10.0),))
"""10 s in its environment."""
DRAWN = Shape(0.0, (Turn(10, 0.0),))
"""10 tokens, and no environment."""


@pytest.fixture
def at(monkeypatch):
    """Preempt machines at given times, by `("node", 0)` and the like."""

    def schedule(**times):
        def given_times(per_hour, seed, kind, number):
            return iter([*times.get(f"{kind}_{number}", ()), float("inf")])

        monkeypatch.setattr(simulation, "moments", given_times)

    return schedule


def waits(**changes):
    return Preemption(**{"node_away": 3.0, "sampler_away": 4.0, "lease": 5.0} | changes)


def test_a_lost_node_costs_what_it_played_the_lease_and_its_absence(at):
    at(node_0=[4.0])
    measured = known(LONG, base=0.0, update=0.0)
    found = simulate(measured, alone(steps=1, preemption=waits()))
    # 4 s are lost; its rollout waits again after 5 s, when the node is back.
    assert found.seconds == pytest.approx(4 + 5 + 10)
    assert (found.rollouts, found.lost) == (1, 1)
    longer = simulate(measured, alone(steps=1, preemption=waits(node_away=7.0)))
    assert longer.seconds == pytest.approx(4 + 7 + 10)


def test_rollouts_of_other_nodes_go_on_and_take_over(at):
    at(node_1=[4.0])
    setup = alone(steps=1, group=2, environments=2, nodes=2, preemption=waits(node_away=100.0))
    found = simulate(known(LONG, base=0.0, update=0.0), setup)
    # The lost one waits from 9 s on, and is played where the other one ends at 10 s.
    assert found.seconds == pytest.approx(20)
    assert (found.rollouts, found.lost) == (2, 1)


def test_a_lost_rollout_goes_before_those_that_have_not_begun(at):
    at(node_0=[4.0])
    setup = alone(steps=1, group=1, tasks_per_step=3, preemption=waits())
    found = simulate(known(LONG, base=0.0, update=0.0), setup)
    # At 7 s the node is back and takes the next one; at 17 s the lost one comes before the third.
    assert found.seconds == pytest.approx(7 + 3 * 10)


def test_a_node_that_is_lost_while_it_is_away_comes_back_later(at):
    at(node_0=[4.0, 6.0])
    found = simulate(known(LONG, base=0.0, update=0.0), alone(steps=1, preemption=waits(lease=0.0)))
    assert found.seconds == pytest.approx(6 + 3 + 10)
    assert found.lost == 1


def test_a_lost_samplers_turns_continue_from_their_tokens(at):
    at(sampler_0=[0.4])
    measured = known(DRAWN, base=0.1, update=0.0)
    two = simulate(measured, alone(steps=1, samplers=2, preemption=waits()))
    assert two.seconds == pytest.approx(1.0), "no token is drawn twice"
    one = simulate(measured, alone(steps=1, preemption=waits()))
    assert one.seconds == pytest.approx(0.4 + 4.0 + 0.6), "it waits for the sampler to come back"
    assert two.tokens == one.tokens == 10


def test_a_lost_nodes_turns_leave_their_sampler(at):
    at(node_1=[0.5])
    measured = known(DRAWN, base=0.0, each=0.1, update=0.0)
    setup = alone(steps=1, group=2, environments=2, nodes=2, preemption=waits(lease=100.0))
    found = simulate(measured, setup)
    # Both at 0.2 s a token until 0.5 s; the other one alone at 0.1 s; the lost one anew, after its lease.
    assert found.seconds == pytest.approx(0.5 + 100.0 + 1.0)
    assert found.tokens == 20


def test_preemption_comes_as_often_as_its_rate_says():
    times = list(itertools.takewhile(lambda time: time < 3.6e6, moments(3.0, 1, "node", 0)))
    assert len(times) == pytest.approx(3000, rel=0.06)
    assert times == sorted(times)
    assert list(moments(0.0, 1)) == []
    assert next(moments(3.0, 1, "node", 0)) != next(moments(3.0, 1, "node", 1))


def test_without_preemption_nodes_change_nothing():
    shapes = (ONE, Shape(0.1, (Turn(3, 0.5), Turn(8, 0.2))))
    found = [
        simulate(known(*shapes, each=0.01), alone(steps=5, group=4, environments=8, nodes=nodes))
        for nodes in (1, 4, 8)
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
@given(st.integers(0, 20), st.integers(1, 3), st.floats(0, 3), st.integers(1, 8))
def test_every_rollout_ends_once_however_often_machines_are_lost(seed, nodes, lag, environments):
    nodes = min(nodes, environments)
    setup = Setup(
        4,
        2,
        2,
        int(lag),
        environments,
        2,
        seed=seed,
        nodes=nodes,
        preemption=Preemption(
            nodes_per_hour=120.0,
            samplers_per_hour=120.0,
            node_away=5.0,
            sampler_away=5.0,
            lease=4.0,
        ),
    )
    found = simulate(known(each=0.01), setup)
    assert found.rollouts >= 4 * 2 * 2
    assert found.tokens >= 10 * 4 * 2 * 2
    undisturbed = simulate(
        known(each=0.01),
        alone(
            steps=4,
            group=2,
            tasks_per_step=2,
            max_lag=int(lag),
            environments=environments,
            samplers=2,
            nodes=nodes,
            shared_device=True,
            seed=seed,
        ),
    )
    assert undisturbed.lost == 0
    if not lag:
        assert found.seconds >= undisturbed.seconds - 1e-9


def test_more_preemption_takes_longer_on_average():
    def mean(rate):
        runs = [
            simulate(
                known(LONG, update=0.0),
                alone(
                    steps=4,
                    group=8,
                    environments=8,
                    nodes=4,
                    seed=seed,
                    preemption=waits(nodes_per_hour=rate),
                ),
            ).seconds
            for seed in range(20)
        ]
        return sum(runs) / len(runs)

    assert mean(0) < mean(40) < mean(120)


def test_rollouts_that_never_end_are_an_error():
    setup = alone(preemption=waits(nodes_per_hour=3600.0, lease=0.0, node_away=0.0))
    with pytest.raises(UsageError, match="preempted 16 times"):
        simulate(known(Shape(0.0, (Turn(1, 1000.0),))), setup)


def test_a_node_has_at_least_one_environment():
    with pytest.raises(UsageError, match="2 nodes cannot share 1 environments"):
        alone(nodes=2)


def test_machines_that_are_hardly_ever_there_are_an_error():
    for name in ("nodes_per_hour", "samplers_per_hour"):
        with pytest.raises(UsageError, match="hardly ever there"):
            simulate(known(), alone(preemption=waits(**{name: 1e6})))


def test_a_place_is_free_after_its_turnaround_and_at_once_on_a_new_node(at):
    measured = known(LONG, base=0.0, update=0.0)
    setup = {"steps": 1, "tasks_per_step": 3, "turnaround_seconds": 2.0}
    assert simulate(measured, alone(**setup)).seconds == pytest.approx(3 * 10 + 2 * 2)
    at(node_0=[11.0])
    lost = simulate(measured, alone(**setup, preemption=waits()))
    assert lost.seconds == pytest.approx(11 + 3 + 10 + 2 + 10)
    assert lost.lost == 0
