"""Slots of decoders that keep their own state: taken over as a whole, or computed from the beginning."""

from hud.engine.sample.own_states import OwnStates
from hud.engine.sample.pages import Pages

PAGE = 4


def slots(pages=6):
    return OwnStates(Pages(pages), PAGE)


def filled(cache, ids, state="state"):
    """Return the slot of a sequence that was computed."""
    placement = cache.place(ids)
    placement.slot.tokens = list(ids)
    placement.slot.state = state
    return placement.slot


def test_the_next_turn_takes_over_the_state_of_the_last_one():
    cache = slots()
    first = filled(cache, list(range(6)))
    cache.release(first)
    assert cache.reusable(list(range(9))) == 6
    placement = cache.place(list(range(9)))
    assert placement.slot is first
    assert placement.cached == 6
    assert len(first.pages) == 3


def test_a_prompt_that_branches_off_is_computed_from_its_beginning():
    cache = slots()
    first = filled(cache, list(range(6)))
    cache.release(first)
    for prompt in ([0, 1, 2, 3, 9, 9, 9], list(range(6)), [0, 1, 2]):
        placement = cache.place(prompt)
        assert (placement.cached, placement.slot.state) == (0, None)
        cache.release(placement.slot)
    assert first.state == "state"


def test_a_busy_state_is_not_shared():
    cache = slots()
    filled(cache, list(range(6)))
    assert cache.place(list(range(9))).cached == 0


def test_a_state_goes_as_a_whole_where_pages_are_needed():
    cache = slots(pages=4)
    old, recent = filled(cache, list(range(6))), filled(cache, list(range(20, 26)))
    cache.release(old)
    cache.release(recent)
    cache.place(list(range(40, 46)))
    assert list(cache)[1:] == [recent]
    assert cache.place(list(range(20, 27))).cached == 6
    assert cache.place(list(range(60, 66))) is None


def test_states_of_old_weights_are_dropped():
    cache = slots()
    idle, busy = filled(cache, list(range(6))), filled(cache, list(range(10, 16)))
    cache.release(idle)
    cache.forget()
    cache.release(busy)
    assert list(cache) == []
    assert cache.pages.in_use == 0
