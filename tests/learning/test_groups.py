"""Assignment of runs to groups: one answer for every caller."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hud.errors import UsageError
from hud.learning.groups import group_labels

names = st.lists(st.sampled_from("abc"), min_size=1, max_size=12)


@pytest.mark.slow
@given(names)
def test_runs_bring_their_groups(own):
    assert group_labels(own) == own


@given(names)
def test_explicit_ids_replace_the_runs_own(given_ids):
    assert group_labels(["own"] * len(given_ids), group_ids=given_ids) == given_ids


@given(st.integers(1, 5), st.integers(1, 5))
def test_a_size_slices_payloads_of_no_group(size, groups):
    found = group_labels([None] * (size * groups), group_size=size)
    assert found == [str(group) for group in range(groups) for _ in range(size)]
    assert group_labels([None] * (size * groups)) is None


@pytest.mark.slow
@given(st.integers(1, 5), st.lists(st.sampled_from("abc"), min_size=1, unique=True), st.randoms())
def test_a_size_that_agrees_with_the_runs_changes_nothing(size, groups, random):
    own = [group for group in groups for _ in range(size)]
    random.shuffle(own)
    assert group_labels(own, group_size=size) == own


@pytest.mark.parametrize(
    ("own", "arguments", "says"),
    [
        (["a", "a", "b"], {"group_size": 2}, "group_size=2 contradicts the runs: group 'b' has 1"),
        (["a"] * 4, {"group_size": 2}, "group_size=2 contradicts the runs: group 'a' has 4 of 2"),
        (["a", "b"], {"group_ids": ["x", "x"], "group_size": 1}, "contradicts the group_ids"),
        ([None] * 7, {"group_size": 4}, "7 trajectories do not divide into groups of 4"),
        ([None] * 3, {"group_ids": ["a"]}, "1 group_ids were given for 3 trajectories"),
        (["a", "b", None], {}, "mixes runs of 2 groups with 1 trajectories of none"),
        (["a", "b", None, None], {"group_size": 2}, "of groups 'a' and 'b'"),
        (["a", None, "a", None], {"group_size": 2}, "group 'a' is spread over two slices"),
    ],
)
def test_contradictions_are_refused_and_show_both_sides(own, arguments, says):
    with pytest.raises(UsageError, match=says):
        group_labels(own, **arguments)


def test_payloads_without_a_group_join_runs_by_position():
    """The opponent's side of self-play: a payload of one's own in the group of a run."""
    assert group_labels(["a", None, "b", None], group_size=2) == ["0", "0", "1", "1"]
    assert group_labels(["a", None]) is None, "one group, of the run and the payload"
