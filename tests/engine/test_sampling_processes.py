"""Small policies sample in several processes: the same tokens, the same versions, and nobody notices."""

import asyncio
import os
import signal

import pytest
import torch
from tests.engine.tiny_policy import lesson, tiny_policy
from tests.engine.waiting import slowed, until

from hud.engine import samplers
from hud.engine.lora import LoraConfig, attach, lora_parameters
from hud.engine.sampler import Sampler
from hud.engine.side_sampler import SideRequest
from hud.engine.threads import sampling_processes
from hud.engine.trainer import Trainer
from hud.errors import InfrastructureFault, UsageError
from hud.trace import SamplingParams

GREEDY = SamplingParams(max_tokens=24, temperature=0)
PROMPTS = [[5, 6, 7 + number] for number in range(8)]


@pytest.fixture
def policy(monkeypatch):
    """A policy that has another process to sample in as soon as it samples at all."""
    monkeypatch.setattr(samplers, "sampling_processes", lambda parameters: 2)
    monkeypatch.setattr(samplers, "BUSY_STEPS", 0)
    monkeypatch.setattr(samplers, "BUSY_SEQUENCES", 0)
    made = tiny_policy()
    made.chat.stop_ids = frozenset()  # Turns end at their length.
    yield made
    made.close()


async def spread(policy):
    """Have the other process started, and return it."""
    await policy.sample([5, 6], SamplingParams(max_tokens=1))
    await until(lambda: policy._samplers._sides)
    (side,) = policy._samplers._sides
    assert await asyncio.to_thread(side.ready.wait, 60)
    return side


async def drawn(policy, prompts=PROMPTS, params=GREEDY):
    return await asyncio.gather(*(policy.sample(prompt, params) for prompt in prompts))


def spoil(policy):
    changing = lora_parameters(policy.decoder) or dict(policy.decoder.named_parameters())
    with torch.no_grad():
        for parameter in changing.values():
            parameter += 0.3 * torch.ones_like(parameter).cumsum(-1).sin()


def where(policy, prompt, params=GREEDY):
    """Submit a turn and return it."""
    from hud.engine.sequence import Asked

    asked = Asked(prompt=prompt, params=params, stop_ids=frozenset())
    return policy._samplers.submit(asked, lambda: None)


async def test_turns_are_shared_out_and_the_same_tokens_are_drawn(policy):
    alone = await drawn(policy)
    await spread(policy)
    requests = [where(policy, prompt) for prompt in PROMPTS]
    elsewhere = sum(isinstance(request, SideRequest) for request in requests)
    assert elsewhere == len(PROMPTS) / 2
    together = await drawn(policy)
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


async def test_a_seed_draws_the_same_in_any_process(policy):
    params = SamplingParams(max_tokens=24, seed=3)
    alone = await policy.sample([5, 6, 7], params)
    await spread(policy)
    again = await drawn(policy, [[5, 6, 7]] * 4, params)
    assert [one.token_ids for one in again] == [alone.token_ids] * 4


@pytest.mark.parametrize("lora", [False, True])
async def test_weights_that_change_here_are_sampled_from_there(policy, lora):
    if lora:
        attach(policy.decoder, LoraConfig(rank=4, alpha=8))
    await spread(policy)
    before = await drawn(policy)

    def change():
        with policy.exclusive():
            spoil(policy)
            policy.checkpoint = "new"

    await asyncio.to_thread(change)
    after = await drawn(policy)
    assert {one.version for one in after} == {"new"}
    assert all(a.token_ids != b.token_ids for a, b in zip(after, before, strict=True))
    sampler = Sampler(policy.decoder)
    alone = [await sampler.sample(prompt, GREEDY, frozenset()) for prompt in PROMPTS]
    sampler.close()
    assert [one.token_ids for one in after] == [one.token_ids for one in alone]


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=4, alpha=8)])
async def test_what_a_trainer_learns_is_sampled_from_whoever_was_there_first(policy, lora):
    trainer = Trainer(policy.decoder, lora=lora)
    await spread(policy)
    before = await drawn(policy)

    def learn():
        trainer.forward_backward([lesson([5, 6, 7, 8, 9, 10], sampled=3)], "cross_entropy")
        with policy.exclusive():
            measured = trainer.optim_step(0.1)
            policy.checkpoint = "learned"
        return measured

    for _ in range(2):
        assert (await asyncio.to_thread(learn))["update_norm:mean"] > 0
    after = await drawn(policy)
    assert all(a.token_ids != b.token_ids for a, b in zip(after, before, strict=True))
    sampler = Sampler(policy.decoder)
    alone = [await sampler.sample(prompt, GREEDY, frozenset()) for prompt in PROMPTS]
    sampler.close()
    assert [one.token_ids for one in after] == [one.token_ids for one in alone]


async def test_a_swap_in_flight_is_told_of_everywhere(policy):
    await spread(policy)
    slowed(policy.sampler)
    long = SamplingParams(max_tokens=400, temperature=0)
    turns = [asyncio.create_task(policy.sample(prompt, long)) for prompt in PROMPTS[:4]]
    active = policy.sampler.active
    await until(lambda: len(active) >= 2 and len(active[0].token_ids) >= 5)

    def change():
        with policy.exclusive(in_flight=True):
            spoil(policy)
            policy.checkpoint = "new"

    await asyncio.to_thread(change)
    ended = await asyncio.gather(*turns)
    assert {one.version for one in ended} == {None}
    told = [
        one.swaps for one in ended if one.swaps
    ]  # The other process may be through with its own before.
    assert told
    for ((place, version),) in told:
        assert version == "new"
        assert 0 <= place < 400


async def test_a_process_that_is_killed_takes_only_its_turns_with_it(policy):
    side = await spread(policy)
    turns = [
        asyncio.create_task(policy.sample(prompt, SamplingParams(max_tokens=480)))
        for prompt in PROMPTS
    ]
    await until(lambda: side.load >= 2)
    os.kill(side._process.pid, signal.SIGKILL)
    ended = await asyncio.gather(*turns, return_exceptions=True)
    lost = [one for one in ended if isinstance(one, InfrastructureFault)]
    assert 0 < len(lost) <= len(PROMPTS) / 2
    assert all(len(one.token_ids) == 480 for one in ended if one not in lost)
    assert len((await policy.sample([5, 6, 7], GREEDY)).token_ids) == 24
    assert (await spread(policy)) is not side


async def test_an_adapter_that_is_put_on_later_is_sampled_with(policy):
    side = await spread(policy)

    def change():
        with policy.exclusive():
            attach(policy.decoder, LoraConfig(rank=4, alpha=8))
            spoil(policy)

    await asyncio.to_thread(change)
    assert not side.alive
    alone = await drawn(policy)
    await spread(policy)
    assert [one.token_ids for one in await drawn(policy)] == [one.token_ids for one in alone]


async def test_the_next_turn_goes_where_the_conversation_is(policy):
    await spread(policy)
    openings = [[number] * 64 for number in range(20, 28)]
    first = [where(policy, prompt) for prompt in openings]
    await until(lambda: all(one.outcome for one in first))
    following = [where(policy, [*one.prompt, *one.token_ids, 5, 6, 7]) for one in first]
    await until(lambda: all(one.outcome for one in following))
    for one, before in zip(following, first, strict=True):
        assert isinstance(one, SideRequest) == isinstance(before, SideRequest)
        assert one.cached >= 64 + 23


async def test_a_turn_that_is_given_up_ends_there(policy):
    side = await spread(policy)
    requests = [where(policy, prompt, SamplingParams(max_tokens=480)) for prompt in PROMPTS]
    theirs = [one for one in requests if isinstance(one, SideRequest)]
    for one in theirs:
        one.abandon()
    assert side.load == 0
    assert all(one.outcome is None for one in theirs)
    await drawn(policy)


def test_the_environment_says_how_many_processes_there_are(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert sampling_processes(1_000_000) == 1
    monkeypatch.setenv("HUD_SAMPLERS", "3")
    assert sampling_processes(1_000_000) == 3
    assert sampling_processes(1_000_000_000) == 1, "each process would read all of them"
    monkeypatch.setenv("HUD_SAMPLERS", "many")
    with pytest.raises(UsageError, match="HUD_SAMPLERS is 'many'; it is a number of processes"):
        sampling_processes(1_000_000)
