"""Prefixes of recurrent models are reused where a state was saved: the end of a turn, of a prompt, and where prompts branch."""

from hud.engine.sample.pages import Pages
from hud.engine.sample.saved_states import SavedStates, states_of

PAGE = 8
SYSTEM = list(range(100, 140))
PROMPT = [*SYSTEM, *range(20)]


def cache(states=8, pages=64):
    return SavedStates(Pages(pages), PAGE, states)


def compute(slots, slot, ids):
    """Bring a slot to the end of `ids`, as a runner does."""
    while len(slot.tokens) < len(ids):
        rest = len(ids) - len(slot.tokens)
        slot.tokens += ids[len(slot.tokens) :][: min(rest, slots.until_saved(slot) or rest)]
        states = states_of(slot)
        row = states.planned.pop(len(slot.tokens), None)
        if row is not None:
            states.saved[len(slot.tokens)] = row


def played(slots, ids, **options):
    placement = slots.place(ids, **options)
    compute(slots, placement.slot, ids)
    return placement


def rows(slots):
    """Return every row in use, each as often as it is."""
    used = []
    for slot in slots:
        states = states_of(slot)
        used += [*states.saved.values(), *states.planned.values()]
        used += [] if states.current is None else [states.current]
    return used


def test_a_prompt_that_is_sampled_several_times_is_computed_once_but_for_its_last_token():
    slots = cache()
    first = played(slots, PROMPT)
    assert first.cached == 0
    second = slots.place(PROMPT)
    assert second.cached == len(PROMPT) - 1
    saved = states_of(first.slot).saved[second.cached]
    assert second.state == (saved, states_of(second.slot).current)
    assert states_of(second.slot).planned == {}


def test_the_next_turn_takes_over_the_slot_and_all_of_its_states():
    slots = cache()
    first = played(slots, PROMPT)
    slots.release(first.slot)
    placement = slots.place([*PROMPT, 7, 8, 9])
    assert placement.cached == len(PROMPT)
    assert list(slots) == [placement.slot]
    assert states_of(placement.slot).saved.keys() == {len(PROMPT) - 1, len(PROMPT)}


def test_the_third_prompt_with_a_common_beginning_shares_it():
    slots = cache()
    cached = []
    for end in (range(20), range(40, 60), range(60, 80)):
        placement = played(slots, [*SYSTEM, *end])
        cached.append(placement.cached)
        slots.release(placement.slot)
    assert cached == [0, 0, len(SYSTEM)]


def test_a_prefix_without_a_saved_state_is_computed_again():
    slots = cache()
    placement = played(slots, PROMPT)
    slots.release(placement.slot)
    assert slots.reusable(SYSTEM) == 0
    assert slots.reusable(PROMPT) == len(PROMPT) - 1


def test_saved_states_give_way_to_active_sequences_the_oldest_first():
    slots = cache(states=3)
    old, recent = played(slots, [1] * 20), played(slots, [2] * 20)
    slots.release(old.slot)
    slots.release(recent.slot)
    active = [slots.place([number] * 20) for number in (3, 4)]
    assert None not in active
    assert slots.reusable([1] * 20 + [9]) == 0
    assert len(set(rows(slots))) == len(rows(slots)) <= 3


def test_a_sequence_waits_where_every_state_is_active():
    slots = cache(states=2)
    first, second = slots.place([1] * 20), slots.place([2] * 20)
    assert slots.place([3] * 20) is None
    slots.release(first.slot)
    assert slots.place([3] * 20) is not None
    assert states_of(second.slot).current is not None


def test_a_placement_that_finds_no_pages_changes_nothing():
    slots = cache(pages=9)
    first = played(slots, PROMPT)
    slots.release(first.slot)
    before = sorted(rows(slots))
    assert slots.place([*PROMPT, *range(40)]) is None
    assert sorted(rows(slots)) == before
    assert slots.reusable([*PROMPT, 1]) == len(PROMPT)


def test_pages_that_are_dropped_drop_the_states_behind_them():
    slots = cache(pages=10)
    first = played(slots, PROMPT)
    slots.release(first.slot)
    slots.place([5] * 24)
    assert list(slots)[1:] == []
    assert len(rows(slots)) + len(slots._free) == 8


def test_states_of_old_weights_are_dropped():
    slots = cache()
    idle, busy = played(slots, [1] * 20), played(slots, PROMPT)
    slots.release(idle.slot)
    slots.forget()
    assert slots.reusable(PROMPT) == 0
    slots.release(busy.slot)
    assert list(slots) == []
    assert sorted(slots._free) == list(range(8))
