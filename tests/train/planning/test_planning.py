"""Plans: simulated runs against ones that can be worked out by hand, and fits against known costs."""

from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from hud.cli.training.plan import command
from hud.errors import UsageError
from hud.trace import AgentStep, Trace, Usage
from hud.train.planning.measured import DecodeCost, Measured, Shape, Turn, measure, turnaround
from hud.train.planning.setup import Setup
from hud.train.planning.simulation import simulate

START = datetime(2026, 1, 1, tzinfo=UTC)
ONE = Shape(1.0, (Turn(10, 2.0),))
"""1 s of setup, 10 tokens, 2 s of grading."""


def known(*shapes, base=0.1, each=0.0, update=3.0, overlapping=False, left_out=0.0, last=0.0):
    decode = DecodeCost(base, each)
    return Measured(shapes or (ONE,), decode, update, overlapping, left_out, last)


def alone(**changes):
    return Setup(
        **{"steps": 3, "group": 1, "tasks_per_step": 1, "environments": 1, "shared_device": False}
        | changes
    )


def test_one_rollout_after_another_and_an_update_after_each():
    found = simulate(known(), alone())
    assert found.seconds == pytest.approx(3 * (1 + 10 * 0.1 + 2 + 3))
    assert (found.rollouts, found.tokens, found.lag) == (3, 30, 0.0)
    assert found.trainer_busy == pytest.approx(3 / 7)
    assert found.sampler_busy == pytest.approx(1 / 7)


def test_sequences_that_share_a_sampler_slow_each_other():
    shape = Shape(0.0, (Turn(10, 0.0),))
    found = simulate(
        known(shape, base=0.1, each=0.05, update=0.0), alone(steps=1, group=4, environments=4)
    )
    assert found.seconds == pytest.approx(10 * (0.1 + 4 * 0.05))
    two = simulate(
        known(shape, base=0.1, each=0.05, update=0.0),
        alone(steps=1, group=4, environments=4, samplers=2),
    )
    assert two.seconds == pytest.approx(10 * (0.1 + 2 * 0.05))


def test_a_short_turn_leaves_a_long_one_faster():
    short, long = Turn(10, 0.0), Turn(30, 0.0)
    shape = Shape(0.0, (short, long))
    found = simulate(known(shape, base=0.0, each=0.1, update=0.0), alone(steps=1))
    assert found.seconds == pytest.approx(40 * 0.1)


def test_environments_bound_how_many_play():
    shape = Shape(1.0, (Turn(1, 0.0),))
    measured = known(shape, base=0.0, update=0.0)
    assert simulate(measured, alone(steps=1, group=8, environments=2)).seconds == pytest.approx(4.0)
    assert simulate(measured, alone(steps=1, group=8, environments=8)).seconds == pytest.approx(1.0)


def test_sampling_ahead_hides_the_shorter_of_the_two_sides():
    shape = Shape(4.0, (Turn(1, 0.0),))
    measured = known(shape, base=0.0, update=3.0)
    apart = {"steps": 20, "environments": 8}
    assert simulate(measured, alone(**apart)).seconds == pytest.approx(20 * 7.0)
    # One step ahead, a group begins when the step before the last ends: two steps take 4 + 3 s.
    one = simulate(measured, alone(**apart, max_lag=1))
    assert one.seconds == pytest.approx(20 * 3.5, rel=0.1)
    assert 0 < one.lag <= 1
    two = simulate(measured, alone(**apart, max_lag=2))
    assert two.seconds == pytest.approx(4.0 + 20 * 3.0, rel=0.05)
    assert 1 < two.lag <= 2


def test_sampling_ahead_learns_from_groups_as_they_end():
    measured, setup = known(update=3.0, last=0.5), {"steps": 1, "tasks_per_step": 2}
    assert simulate(measured, alone(**setup)).seconds == pytest.approx(2 * 4 + 3)
    ahead = simulate(measured, alone(**setup, max_lag=1))
    assert ahead.seconds == pytest.approx(2 * 4 + 2.5 / 2 + 0.5)


def test_what_was_measured_while_both_sides_worked_is_not_slowed_down_again():
    ahead = {"steps": 20, "environments": 8, "max_lag": 1}
    apart = simulate(known(), alone(**ahead)).seconds
    assert simulate(known(), alone(**ahead, shared_device=True)).seconds > 1.3 * apart
    measured = known(overlapping=True)
    assert simulate(measured, alone(**ahead, shared_device=True)).seconds == pytest.approx(apart)


def test_groups_that_teach_nothing_are_drawn_again_once_all_have_ended_and_cost_no_update():
    setup = alone(steps=2, group=3, tasks_per_step=4, environments=12, dynamic_sampling=2)
    nothing = simulate(known(left_out=1.0), setup)
    assert nothing.seconds == pytest.approx(2 * 3 * (1 + 10 * 0.1 + 2))
    assert nothing.rollouts == 2 * 3 * 4 * 3
    once = simulate(known(left_out=1.0), alone(steps=2, dynamic_sampling=0))
    assert once.seconds == pytest.approx(2 * (1 + 10 * 0.1 + 2))


def test_sampling_ahead_draws_others_beside_those_that_still_play():
    changes = {"steps": 30, "tasks_per_step": 4, "environments": 8, "dynamic_sampling": 3}
    measured = known(left_out=0.5)
    behind, ahead = (simulate(measured, alone(**changes, max_lag=lag)) for lag in (0, 1))
    assert ahead.seconds < behind.seconds
    for found in (behind, ahead):
        assert 1.5 * 30 * 4 < found.rollouts < 2.5 * 30 * 4


@pytest.mark.slow
@given(
    left_out=st.sampled_from([0.0, 0.3, 1.0]),
    again=st.integers(0, 2),
    lag=st.integers(0, 3),
    group=st.integers(1, 4),
    tasks=st.integers(1, 4),
    environments=st.integers(1, 20),
    samplers=st.integers(1, 3),
    shared=st.booleans(),
)
def test_whatever_the_setup_every_step_gets_its_rollouts_and_none_is_too_old(
    left_out, again, lag, group, tasks, environments, samplers, shared
):
    shapes = (ONE, Shape(0.1, (Turn(3, 0.5), Turn(8, 0.2), Turn(1, 0.0))))
    setup = Setup(6, group, tasks, lag, environments, samplers, 1, shared, 0, again)
    found = simulate(known(*shapes, each=0.01, left_out=left_out), setup)
    assert found.rollouts >= 6 * group * tasks
    # Ahead, one is begun in place of each that is left out, also where a step draws no more.
    others = 6 * (1 + again) if left_out else 0
    assert found.rollouts <= (6 + lag + others) * group * tasks
    assert 0 <= found.lag <= lag
    assert 0 < found.trainer_busy <= 1 or left_out
    assert 0 < found.sampler_busy <= 1 + 1e-9


def test_nothing_can_be_planned_with_nobody():
    with pytest.raises(UsageError, match="environments must be at least 1"):
        Setup(environments=0)


def turn_of(began, seconds, tokens):
    return AgentStep(
        content="x",
        usage=Usage(completion_tokens=tokens),
        started_at=START + timedelta(seconds=began),
        ended_at=START + timedelta(seconds=began + seconds),
    )


def rollout(began, *turns, after=0.5, setup=0.25):
    """A rollout whose turns follow one another with a second in between; each is `(seconds, tokens)`."""
    steps, now = [], began + setup
    for seconds, tokens in turns:
        steps.append(turn_of(now, seconds, tokens))
        now += seconds + 1.0
    trace = Trace(steps=steps)
    return START.timestamp() + began, trace, START.timestamp() + now - 1.0 + after


def test_the_cost_of_a_step_is_found_in_turns_whose_neighbours_are_known():
    base, each = 0.01, 0.002
    rollouts = []
    for batch, size in enumerate((1, 2, 4, 8, 16)):  # Apart in time, each batch drawn together.
        cost = base + each * size
        rollouts += [rollout(1000.0 * batch, (40 * cost, 40)) for _ in range(size)]
    found = measure(rollouts, [1.0, 5.0, 2.0], applying=[0.1, 0.3, 0.2])
    assert found.decode.base == pytest.approx(base, rel=1e-3)
    assert found.decode.per_sequence == pytest.approx(each, rel=1e-3)
    assert (found.update_seconds, found.apply_seconds) == (2.0, 0.2)


def test_what_passes_between_turns_is_the_environments():
    found = measure([rollout(0.0, (1.0, 10), (2.0, 20))], [1.0])
    (shape,) = found.shapes
    assert shape.setup_seconds == pytest.approx(0.25)
    assert [turn.tokens for turn in shape.turns] == [10, 20]
    assert [turn.environment_seconds for turn in shape.turns] == pytest.approx([1.0, 0.5])


def test_the_turnaround_is_from_an_end_to_the_next_start_in_its_place():
    # Two places, each with rollouts of 10 s and 0.5 s between them.
    runs = [(offset + 10.5 * n, offset + 10.5 * n + 10) for n in range(6) for offset in (0.0, 0.1)]
    assert turnaround(runs, 2) == pytest.approx(0.5)
    assert turnaround(runs[:2], 2) == 0.0


def test_without_turns_there_is_nothing_to_plan_from():
    with pytest.raises(UsageError, match="nothing to plan from"):
        measure([(0.0, Trace(), 1.0)], [1.0])
    with pytest.raises(UsageError, match="nothing to plan from"):
        measure([rollout(0.0, (1.0, 10))], [])


@pytest.mark.parametrize(
    ("recorded", "given", "shown"),
    [
        (Setup(steps=2), [], ["64", "128"]),
        (Setup(steps=2, max_lag=2, environments=128), [], ["64", "128"]),
        (Setup(steps=2, environments=20), [], ["20", "20"]),
        (Setup(steps=2), ["--environments", "16"], ["16", "16"]),
    ],
)
def test_a_run_with_another_lag_plays_as_many_rollouts_as_it_would(
    monkeypatch, recorded, given, shown
):
    async def found(*arguments):
        return known(), recorded, None

    monkeypatch.setattr("hud.cli.training.plan_simulation.recorded", found)
    lags = ["--max-lag", "0", "--max-lag", "2"]
    said = CliRunner().invoke(command, ["m", "--simulate", *lags, *given])
    assert said.exit_code == 0, said.output
    rows = [line.split() for line in said.output.splitlines() if line.split()[:1] in (["0"], ["2"])]
    assert [row[1] for row in rows] == shown
