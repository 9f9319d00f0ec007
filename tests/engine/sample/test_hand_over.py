"""Weights that change while turns are drawn: those go on with the old ones, and nobody waits for them."""

import asyncio

import pytest
from tests.engine.tiny_policy import tiny_policy
from tests.engine.waiting import slowed

from hud.engine.lora import LoraConfig, attach, lora_parameters
from hud.engine.sample import weight_swap as swapping
from hud.trace import SamplingParams

LONG, SHORT = SamplingParams(max_tokens=200, temperature=0), SamplingParams(max_tokens=5)


@pytest.fixture(params=["full", "lora"])
def policy(request):
    made = tiny_policy()
    made.chat.stop_ids = frozenset()  # Turns end at their length.
    if request.param == "lora":
        attach(made.decoder, LoraConfig(rank=4, alpha=8))
        spoil(made)  # A fresh adapter changes nothing.
    yield made
    made.close()


def spoil(policy):
    changing = lora_parameters(policy.decoder) or dict(policy.decoder.named_parameters())
    for parameter in changing.values():
        parameter.data += 0.3 * parameter.data.new_ones(parameter.shape).cumsum(-1).sin()


async def begun(policy, params=LONG):
    """Begin a turn, and return its task once it is being drawn."""
    task = asyncio.create_task(policy.sample([5, 6, 7], params))
    for _ in range(5000):
        if policy.sampler.active and policy.sampler.active[0].token_ids:
            return task
        await asyncio.sleep(0.001)
    raise AssertionError("it never began")


def change(policy, name):
    with policy.exclusive():
        spoil(policy)
        policy.checkpoint = name


@pytest.mark.slow
async def test_turns_on_their_way_keep_their_weights_and_hold_up_nobody(policy):
    expected = await policy.sample([5, 6, 7], LONG)
    slowed(policy.sampler)
    old = await begun(policy)
    await asyncio.to_thread(change, policy, "new")
    fresh = await policy.sample([5, 6, 7], LONG)
    assert not old.done()
    assert fresh.version == "new"
    assert fresh.token_ids != expected.token_ids
    drawn = await old
    assert drawn.version is None
    assert drawn.token_ids == expected.token_ids


@pytest.mark.slow
async def test_who_waits_is_drawn_with_the_new_weights(policy):
    policy.sampler.scheduler.most = 1
    slowed(policy.sampler)
    old = await begun(policy)
    waiting = asyncio.create_task(policy.sample([5, 6, 7], SHORT))
    await asyncio.sleep(0)
    await asyncio.to_thread(change, policy, "new")
    assert (await waiting).version == "new"
    assert not old.done()
    assert (await old).version is None


@pytest.mark.slow
async def test_a_second_change_waits_for_what_the_first_left_behind(policy):
    slowed(policy.sampler)
    first = await begun(policy)
    await asyncio.to_thread(change, policy, "one")
    slowed(policy.sampler, 0.001)
    second = await begun(policy)
    await asyncio.to_thread(change, policy, "two")
    assert second.done()
    assert not first.done()
    assert ((await first).version, (await second).version) == (None, "one")
    assert (await policy.sample([5, 6, 7], SHORT)).version == "two"


@pytest.mark.slow
async def test_without_room_for_a_copy_turns_are_finished_first(policy, monkeypatch):
    monkeypatch.setattr(swapping, "HAND_OVER_BYTES", 0)
    sampler = policy.sampler
    slowed(sampler, 0.001)
    old = await begun(policy)
    await asyncio.to_thread(change, policy, "new")
    assert (await old).version is None
    assert policy.sampler is sampler


async def test_a_turn_that_is_given_up_ends_with_its_old_weights(policy):
    slowed(policy.sampler)
    before = policy.sampler
    old = await begun(policy)
    await asyncio.to_thread(change, policy, "new")
    old.cancel()
    for _ in range(500):
        if before._thread is not None and not before._thread.is_alive():
            break
        await asyncio.sleep(0.01)
    assert not before._thread.is_alive()


async def test_an_adapter_s_copy_shares_the_weights_below_it():
    policy = tiny_policy()
    attach(policy.decoder, LoraConfig(rank=4, alpha=8))
    copy = swapping.copied(policy.decoder)
    adapters = lora_parameters(policy.decoder)
    for name, parameter in copy.named_parameters():
        original = policy.decoder.get_parameter(name)
        assert (parameter is original) == (name not in adapters)
    policy.close()
