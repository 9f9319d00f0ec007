"""What a worker takes: what it has room for, and ahead only what it begins in a moment."""

import pytest

from hud.fleet.attempts import held_attempts
from hud.fleet.attempts.held_attempts import HeldAttempts


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(held_attempts, "time", made)
    return made


def given(number, **needs):
    return {"trace_id": f"trace {number}", "attempt": 1, "needs": needs}


def play(held, clock, count, seconds):
    """Take so many, and play them one after the other."""
    for number in range(count):
        held.take(given(number))
        attempt = held.next()
        clock.now += seconds
        held.end(attempt)
        held.drop(attempt)


def test_a_new_worker_takes_what_it_has_room_for(clock):
    held = HeldAttempts(8, {})
    assert held.wanted() == (8, 0)
    for number in range(8):
        held.take(given(number))
    assert [held.next().trace_id for _ in range(8)] == [f"trace {n}" for n in range(8)]
    assert held.next() is None
    assert held.wanted() == (0, 0)


@pytest.mark.parametrize(
    ("seconds", "ahead"), [(0.01, 32), (0.25, 16), (1.0, 4), (3.9, 1), (30.0, 0)]
)
def test_it_takes_ahead_what_begins_in_a_moment_and_nothing_where_rollouts_are_long(
    clock, seconds, ahead
):
    held = HeldAttempts(8, {})
    play(held, clock, 20, seconds)
    assert held.wanted() == (8, ahead)


def test_a_few_are_taken_together_while_others_are_at_hand(clock):
    held = HeldAttempts(8, {})
    play(held, clock, 20, 0.5)
    for number in range(16):
        held.take(given(number))
    playing = [held.next() for _ in range(8)]
    for number, attempt in enumerate(playing):
        assert held.wanted() == ((0, 0) if number < 6 else (0, number))
        attempt.since = clock.now - 0.5
        held.end(attempt)
        held.drop(attempt)
        assert held.next() is not None
    assert (len(held.waiting), held.wanted()) == (0, (0, 0))
    clock.now += 0.5
    held.end(next(iter(held.playing.values())))
    assert held.wanted() == (1, 8)


def test_nothing_is_taken_while_four_times_what_may_be_played_waits_to_be_brought(clock):
    held = HeldAttempts(2, {})
    for number in range(8):
        held.take(given(number))
        held.end(held.next())
    assert held.wanted() == (0, 0)
    held.drop(held.find("trace 0"))
    assert held.wanted() == (2, 8)


def test_what_waits_and_what_is_played_uses_up_amounts(clock):
    held = HeldAttempts(4, {"gpus": 2, "cpus": 8.0, "images": True, "platform": "x"})
    held.take(given(0, gpus=1, cpus=2))
    held.take(given(1, gpus=1, gpu_types=["H100"]))
    attempt = held.next()
    assert held.left() == {"gpus": 0.0, "cpus": 6.0}
    held.end(attempt)
    assert held.left() == {"gpus": 1.0, "cpus": 8.0}
