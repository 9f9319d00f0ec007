"""Pauses between attempts."""

from hypothesis import given
from hypothesis import strategies as st

from hud.processes.backoff import Backoff


def test_pauses_double_up_to_the_longest():
    backoff = Backoff(0.5, longest_seconds=3.0)
    assert [backoff.seconds(failures) for failures in (1, 2, 3, 4, 5000)] == [
        0.5,
        1.0,
        2.0,
        3.0,
        3.0,
    ]


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_a_spread_pause_stays_within_its_share(failures, spread):
    pause = Backoff(1.0, longest_seconds=60.0, spread=spread).seconds(failures)
    plain = Backoff(1.0, longest_seconds=60.0).seconds(failures)
    assert plain * (1 - spread) - 1e-9 <= pause <= plain * (1 + spread) + 1e-9
