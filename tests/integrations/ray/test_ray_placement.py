"""Where hosts start, drain and stop on a Ray cluster: the decisions, without Ray."""

import math

import pytest

from hud.errors import UsageError
from hud_integrations.ray.commands.group import bounds
from hud_integrations.ray.placement import LOWER_SECONDS, Changes, Node, Scaling, changes, endings

NOW = 1_000.0


def node(name, *, ends_at=None, **labels):
    return Node(name, f"address of {name}", labels, ends_at)


def decide(nodes, hosts, wanted, **more):
    return changes(nodes, hosts, wanted, now=NOW, notice=15.0, **more)


def test_hosts_start_on_free_nodes_until_as_many_as_wanted_play():
    nodes = [node("a"), node("b"), node("c"), node("d")]
    found = decide(nodes, {"b": "running"}, 3)
    assert [one.id for one in found.start] == ["a", "c"]
    assert decide(nodes, {}, 9).start == nodes, "one a node, and no more"
    assert decide(nodes, {"a": "starting", "b": "running"}, 2) == Changes()


def test_surplus_hosts_drain_and_keep_what_they_play():
    nodes = [node("a"), node("b"), node("c")]
    hosts = {"a": "running", "b": "running", "c": "running"}
    assert decide(nodes, hosts, 1) == Changes(drain=["b", "c"])
    assert decide(nodes, {**hosts, "b": "draining", "c": "draining"}, 1) == Changes()
    assert decide(nodes, {**hosts, "b": "ended"}, 2) == Changes(forget=["b"])


def test_the_host_of_a_lost_node_is_forgotten_and_another_node_takes_its_place():
    found = decide([node("b"), node("c")], {"a": "starting", "b": "running"}, 2)
    assert (found.forget, [one.id for one in found.start]) == (["a"], ["c"])


@pytest.mark.parametrize(
    ("left", "seconds"), [(5.0, 2.0), (1.0, 0.0), (600.0, 15.0), (math.inf, 15.0)]
)
def test_a_node_that_ends_soon_gives_its_worker_the_notice_that_is_left(left, seconds):
    nodes = [node("a", ends_at=NOW + left), node("b", ends_at=NOW + left), node("c")]
    found = decide(nodes, {"a": "running"}, 1)
    assert found.stop == {"a": seconds}
    assert [one.id for one in found.start] == ["c"], "and another plays instead, at once"
    assert decide(nodes, {"a": "stopping"}, 1).stop == {}


def test_a_node_that_the_platform_drained_stays_empty():
    nodes = [node("a"), node("b")]
    found = decide(nodes, {"a": "drained"}, 1)
    assert [one.id for one in found.start] == ["b"]
    assert found.forget == []


def test_a_node_on_which_a_host_died_gets_none_for_a_while():
    found = decide([node("a"), node("b")], {}, 2, avoid=frozenset("a"))
    assert [one.id for one in found.start] == ["b"]


def test_at_the_end_what_plays_stops_and_all_else_is_removed():
    nodes = [node("a"), node("b"), node("c", ends_at=NOW + 5.0), node("d"), node("e")]
    hosts = {"a": "running", "b": "draining", "c": "running", "d": "drained", "gone": "running"}
    found = endings(nodes, hosts, now=NOW, notice=15.0)
    assert found.stop == {"a": 15.0, "b": 15.0, "c": 2.0}
    assert sorted(found.forget) == ["d", "gone"]
    assert (found.start, found.drain) == ([], [])


def test_the_queue_raises_the_number_at_once_and_lowers_it_late():
    scaling = Scaling(1, 4, 16)
    queue = lambda waiting, running=0: {"waiting": waiting, "running": running}  # noqa: E731
    assert scaling.next(queue(0), 0.0) == 1
    assert scaling.next(queue(17), 1.0) == 2
    assert scaling.next(queue(1_000), 2.0) == 4
    assert scaling.next(None, 3.0) == 4, "a platform that does not answer changes nothing"
    assert scaling.next(queue(0, 40), 2.0 + LOWER_SECONDS) == 4
    assert scaling.next(queue(0, 3), 3.0 + LOWER_SECONDS) == 3
    assert scaling.next(queue(0), 4.0 + 2 * LOWER_SECONDS) == 1


def test_labels_choose_nodes():
    spot = node("a", market="spot", zone="b")
    assert spot.suits({"market": "spot"})
    assert spot.suits({})
    assert not spot.suits({"market": "on-demand"})
    assert not spot.suits({"gpu": "none"})


@pytest.mark.parametrize(("text", "found"), [("2..8", (2, 8)), ("0..1", (0, 1)), ("3", (3, 3))])
def test_bounds_are_two_numbers_or_one(text, found):
    assert bounds(text) == found


@pytest.mark.parametrize("text", ["", "8..2", "0", "0..0", "two", "1...3", "-1..3"])
def test_bounds_that_are_none_are_refused(text):
    with pytest.raises(UsageError, match=r"--hosts takes MIN\.\.MAX"):
        bounds(text)
