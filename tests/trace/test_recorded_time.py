"""Durations under a wall clock that jumps: never negative, and right after a step back."""

import time

import pytest

from hud import Environment
from hud.eval import Taskset
from hud.eval.results.run_summary import elapsed
from hud.trace import now

env = Environment("clocks")


@env.template()
async def say(word: str):
    yield word
    yield 1.0


@pytest.fixture
def step(monkeypatch):
    """Move the wall clock by seconds."""
    wall, moved = time.time, []
    monkeypatch.setattr(time, "time", lambda: wall() + sum(moved))
    return moved.append


async def test_a_run_during_which_the_clock_steps_back_lasts_as_long_as_it_does(step):
    async def agent(run):
        step(-3600.0)
        return "red"

    job = await Taskset("t", [say("red"), say("blue")]).run(agent, max_concurrent=1)
    assert all(0 <= run.seconds < 60 for run in job.runs)
    for run in job.runs:
        times = [run.started_at, *(part.started_at for part in run.trace.steps), run.ended_at]
        assert times == sorted(times)


def test_steps_ahead_are_followed(step):
    """A machine that sleeps has a monotonic clock that stands still."""
    before = now()
    step(3600.0)
    assert (now() - before).total_seconds() >= 3600
    step(-7200.0)
    after = now()
    assert 3600 <= (after - before).total_seconds() < 3660
    assert now() >= after


def test_times_of_two_machines_make_no_negative_duration():
    assert elapsed("2026-01-01T00:00:10+00:00", "2026-01-01T00:00:00+00:00") == 0.0
