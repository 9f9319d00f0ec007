"""Which checkpoints of a run keep their files: the newest, the best, every k-th, or all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.errors import UsageError
from hud.eval.results.held_out_scores import Score
from hud.train.checkpoint_retention import retention_of
from hud.train.config import make_config


def config(**values):
    return make_config({"model": "m", "tasks": "tasks.py", "steps": 60, **values})


def nodes(count):
    return {done: f"c{done}" for done in range(1, count + 1)}


def score(step, mean):
    return Score(
        step=step, mean=mean, low=mean, high=mean, runs=4, failed=0, checkpoint_id=f"c{step}"
    )


def kept(config, count, scores=()):
    return set(nodes(count).values()) - retention_of(config, nodes(count), scores).expendable


def test_by_default_the_newest_every_tenth_and_the_best_stay():
    scores = [score(5, 0.9), score(10, 0.2), score(15, 0.4)]
    assert kept(config(), 30, scores) == {"c5", "c10", "c20"} | {f"c{n}" for n in range(23, 31)}


def test_a_long_run_keeps_about_twenty_for_good():
    assert kept(config(steps=1000, keep=1), 999) == {f"c{n}" for n in range(50, 999, 50)} | {"c999"}


def test_every_kth_is_as_given():
    assert kept(config(keep=1, keep_every=4), 9) == {"c4", "c8", "c9"}


def test_all_keeps_all():
    retention = retention_of(config(keep="all"), nodes(50), [])
    assert retention.expendable == retention.weights_only == set()


def test_the_newest_two_and_the_best_keep_their_optimizer_state():
    scores = [score(5, 0.9), score(10, 0.2)]
    retention = retention_of(config(keep=4), nodes(30), scores)
    assert retention.weights_only == {"c10", "c20", "c27", "c28"}


def test_a_number_is_read_from_text_and_zero_is_refused():
    assert config(keep="3").keep == 3
    with pytest.raises(UsageError, match="keep"):
        config(keep=0)


@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 30), st.lists(st.integers(1, 200)))
def test_the_newest_and_the_best_always_stay(count, keep, every, scored):
    scores = [score(done, done % 7 / 7) for done in scored if done <= count]
    found = kept(config(keep=keep, keep_every=every), count, scores)
    assert {f"c{n}" for n in range(max(1, count - keep + 1), count + 1)} <= found
    if scores:
        assert max(scores, key=lambda one: (one.mean, one.step)).checkpoint_id in found
