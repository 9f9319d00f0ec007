"""Weights that take over in the middle of turns: each token stands under the weights that drew it."""

import asyncio
import threading

import pytest
from tests.engine.tiny_policy import tiny_policy
from tests.engine.waiting import until

from hud.trace import SamplingParams

LONG = SamplingParams(max_tokens=60, temperature=0)
PROMPT = [5 + place % 40 for place in range(40)]


@pytest.fixture
def policy():
    made = tiny_policy()
    made.chat.stop_ids = frozenset()  # Turns end at their length.
    yield made
    made.close()


def change(policy, name):
    with policy.exclusive(in_flight=True):
        for parameter in policy.decoder.parameters():
            parameter.data += 0.3 * parameter.data.new_ones(parameter.shape).cumsum(-1).sin()
        policy.checkpoint = name


async def changed_at(policy, place, name):
    """Draw a turn whose weights change once `place` tokens of it are there."""
    reached, go_on = threading.Event(), threading.Event()

    def seen(ids):
        if len(ids) == place:
            reached.set()
            go_on.wait(10)
        return False

    turn = asyncio.create_task(policy.sample(PROMPT, LONG, stopped=seen))
    await asyncio.to_thread(reached.wait, 10)
    swap = asyncio.create_task(asyncio.to_thread(change, policy, name))
    await until(lambda: policy.sampler._pauses[True])  # It asks for the gap that comes now.
    go_on.set()
    await swap
    return await turn


@pytest.mark.slow
async def test_a_turn_is_continued_by_the_new_weights_and_says_from_where(policy):
    old = await policy.sample(PROMPT, LONG)
    policy.sampler.set_version("old")  # Nothing of it may be found in the cache.
    mixed = await changed_at(policy, 20, "new")
    new = await policy.sample(PROMPT, LONG)
    assert (mixed.version, mixed.swaps) == ("old", [(20, "new")])
    assert mixed.token_ids[:20] == old.token_ids[:20]
    assert mixed.token_ids != old.token_ids
    assert (new.version, new.swaps) == ("new", [])
    assert len(mixed.token_ids) == len(mixed.logprobs) == 60


@pytest.mark.slow
async def test_what_old_weights_computed_is_never_used_for_another_turn(policy):
    mixed = await changed_at(policy, 20, "new")
    again = await policy.sample(PROMPT, LONG)
    assert again.cached_tokens == 0
    policy.sampler.set_version("new")
    assert (await policy.sample(PROMPT, LONG)).token_ids == again.token_ids
    follow_up = [*PROMPT, *mixed.token_ids, 7]
    afresh = await policy.sample(follow_up, LONG)
    policy.sampler.set_version("new")
    assert (await policy.sample(follow_up, LONG)).token_ids == afresh.token_ids


async def test_a_prompt_that_comes_while_such_a_turn_goes_on_copies_nothing_of_it(policy):
    release = threading.Event()

    def held(ids):
        if len(ids) == 20:
            release.wait(10)
        return False

    turn = asyncio.create_task(policy.sample(PROMPT, LONG, stopped=held))
    await until(lambda: policy.sampler.active and len(policy.sampler.active[0].token_ids) >= 20)
    swap = asyncio.create_task(asyncio.to_thread(change, policy, "new"))
    await until(lambda: policy.sampler._pauses[True])
    beside = asyncio.create_task(policy.sample(PROMPT, LONG))
    await asyncio.sleep(0)
    release.set()
    await swap
    drawn = await beside
    assert (drawn.version, drawn.cached_tokens) == ("new", 0)
    assert (await turn).swaps == [(20, "new")]


async def test_two_changes_before_the_next_token_count_as_one(policy):
    reached, go_on = threading.Event(), threading.Event()

    def seen(ids):
        if len(ids) == 5:
            reached.set()
            go_on.wait(10)
        return False

    turn = asyncio.create_task(policy.sample(PROMPT, LONG, stopped=seen))
    await asyncio.to_thread(reached.wait, 10)

    def twice():
        with policy.sampler.exclusive(in_flight=True):
            policy.checkpoint = "one"
            policy.checkpoint = "two"

    swap = asyncio.create_task(asyncio.to_thread(twice))
    await until(lambda: policy.sampler._pauses[True])
    go_on.set()
    await swap
    assert (await turn).swaps == [(5, "two")]


async def test_a_change_after_the_last_token_is_not_the_turns(policy):
    drawn = await policy.sample(PROMPT, LONG)
    await asyncio.to_thread(change, policy, "new")
    assert drawn.swaps == []
