"""Forks of one base: one copy of its weights, one batch, and each fork draws and learns as if it were alone."""

import asyncio
import os
import shutil
from dataclasses import replace

import pytest
import torch
from tests.engine.rounding import logprob_tolerance
from tests.engine.tiny_policy import lesson, tiny_folder
from tests.engine.waiting import until

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.lora import DEFAULT_TARGETS, LoraConfig, attach, lora_parameters
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.policy import Policy
from hud.engine.pretrained import load_decoder, save_decoder
from hud.engine.sample.sampler import Sampler
from hud.engine.sample.shared_base import SharedBase, SharedBases
from hud.trace import SamplingParams

GREEDY = SamplingParams(max_tokens=24, temperature=0)
LONG = SamplingParams(max_tokens=200, temperature=0)
PROMPT = list(range(20, 60))


@pytest.fixture
def base():
    made = SharedBase(load_decoder(tiny_folder()))
    yield made
    for fork in list(made._forks):
        fork.close()


def fork_of(base, seed, rank=4, targets=DEFAULT_TARGETS):
    """Return a fork's policy, with an adapter that says something."""
    sampler = base.fork()
    policy = Policy(sampler.decoder, chat_of(base), samplers=sampler)
    policy.chat.stop_ids = frozenset()
    attach(policy.decoder, LoraConfig(rank=rank, alpha=8, targets=targets))
    spoil(policy, seed)
    policy.checkpoint = f"fork {seed}"
    return policy


def chat_of(base):
    return ChatFormat(tiny_folder(), base.decoder.config)


def spoil(policy, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in lora_parameters(policy.decoder).values():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.3


async def alone(policy, prompt=PROMPT, params=GREEDY):
    """What a sampler of its own draws with a fork's decoder."""
    sampler = Sampler(policy.decoder)
    drawn = await sampler.sample(prompt, params, frozenset())
    sampler.close()
    return drawn


def test_forks_hold_the_base_s_weights_once(base):
    policies = [fork_of(base, seed) for seed in range(3)]
    held = dict(base.decoder.named_parameters())
    for policy in policies:
        for name, parameter in policy.decoder.named_parameters():
            if not name.endswith(("lora_A", "lora_B")):
                assert parameter is held[name.replace(".base.", ".")]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(4, 4, 4), (4, 40, 80)])
async def test_forks_are_drawn_in_one_batch_each_as_if_alone(base, ranks):
    policies = [fork_of(base, seed, rank) for seed, rank in enumerate(ranks)]
    expected = [await alone(policy) for policy in policies]
    together = await asyncio.gather(
        *(policy.sample(PROMPT, GREEDY) for policy in policies for _ in range(2))
    )
    for place, drawn in enumerate(together):
        one = expected[place // 2]
        assert drawn.version == f"fork {place // 2}"
        assert drawn.token_ids == one.token_ids
        near = logprob_tolerance(base.decoder.config, context=64)
        assert drawn.logprobs == pytest.approx(one.logprobs, abs=near)
    assert len({tuple(drawn.token_ids) for drawn in together}) == len(policies)
    assert base.sampler.steps < 2 * len(policies) * 24 / 2


@pytest.mark.slow
async def test_what_one_fork_s_cache_holds_is_never_found_by_another(base):
    one, other = fork_of(base, 1), fork_of(base, 2)
    assert (await one.sample(PROMPT, GREEDY)).cached_tokens == 0
    assert (await one.sample(PROMPT, GREEDY)).cached_tokens > 0
    drawn = await other.sample(PROMPT, GREEDY)
    assert drawn.cached_tokens == 0
    assert drawn.token_ids == (await alone(other)).token_ids


async def test_the_cache_holds_nothing_of_a_version_that_no_turn_will_use(base):
    one, other = fork_of(base, 1), fork_of(base, 2)
    await other.sample(PROMPT, GREEDY)
    pages = base.sampler.prefix_cache.pages
    of_other = pages.in_use
    await one.sample(PROMPT, GREEDY)
    assert pages.in_use > of_other
    one.checkpoint = "next"
    assert pages.in_use == of_other
    assert (await other.sample(PROMPT, GREEDY)).cached_tokens > 0


@pytest.mark.slow
async def test_forks_learn_each_for_itself(base):
    one, other = fork_of(base, 1), fork_of(base, 2)
    trainer = LocalTrainer(one.decoder, lora=LoraConfig(rank=4, alpha=8))
    before = await one.sample(PROMPT, GREEDY), await other.sample(PROMPT, GREEDY)
    frozen = {name: parameter.clone() for name, parameter in base.decoder.named_parameters()}

    def learn():
        trainer.forward_backward([lesson([*PROMPT, 7, 8, 9], sampled=3)], "cross_entropy")
        with one.exclusive():
            trainer.optim_step(0.1)
            one.checkpoint = "learned"

    await asyncio.to_thread(learn)
    after = await one.sample(PROMPT, GREEDY), await other.sample(PROMPT, GREEDY)
    assert after[0].version == "learned"
    assert after[0].token_ids == (await alone(one)).token_ids
    assert after[0].logprobs != before[0].logprobs
    assert (after[1].token_ids, after[1].version) == (before[1].token_ids, "fork 2")
    assert all(torch.equal(frozen[name], now) for name, now in base.decoder.named_parameters())


@pytest.mark.slow
async def test_turns_on_their_way_end_with_the_version_they_began_with(base):
    one, other = fork_of(base, 1), fork_of(base, 2)
    expected = await alone(one, params=LONG), await alone(other, params=LONG)
    turns = [asyncio.create_task(policy.sample(PROMPT, LONG)) for policy in (one, other)]
    await until(lambda: one.turns and any(r.token_ids for r in base.sampler.active))
    with one.exclusive():
        spoil(one, 3)
        one.checkpoint = "new"
    fresh = await one.sample(PROMPT, GREEDY)
    old, beside = await asyncio.gather(*turns)
    assert (old.version, old.token_ids) == ("fork 1", expected[0].token_ids)
    assert (beside.version, beside.token_ids) == ("fork 2", expected[1].token_ids)
    assert (fresh.version, fresh.token_ids) == ("new", (await alone(one)).token_ids)
    assert not old.swaps


@pytest.mark.slow
async def test_a_swap_in_flight_stands_on_the_turns_of_its_fork_alone(base):
    one, other = fork_of(base, 1), fork_of(base, 2)
    turns = [asyncio.create_task(policy.sample(PROMPT, LONG)) for policy in (one, other)]
    await until(
        lambda: len(base.sampler.active) == 2 and all(r.token_ids for r in base.sampler.active)
    )
    with one.exclusive(in_flight=True):
        spoil(one, 3)
        one.checkpoint = "new"
    swapped, beside = await asyncio.gather(*turns)
    ((place, version),) = swapped.swaps
    assert (swapped.version, version) == ("fork 1", "new")
    assert 0 < place < 200
    assert not beside.swaps
    assert (await one.sample(PROMPT, GREEDY)).cached_tokens == 0


@pytest.mark.slow
async def test_versions_that_nobody_draws_with_make_room(base):
    policy = fork_of(base, 1)
    for number in range(20):
        with policy.exclusive():
            spoil(policy, number)
            policy.checkpoint = str(number)
        await policy.sample(PROMPT, GREEDY)
    assert len(base.bank.held) == 1
    assert (await policy.sample(PROMPT, GREEDY)).token_ids == (await alone(policy)).token_ids


async def test_weights_that_changed_without_a_name_are_drawn_with_too(base):
    policy = fork_of(base, 1)
    with policy.exclusive():
        spoil(policy, 5)
    drawn = await policy.sample(PROMPT, GREEDY)
    assert (drawn.version, drawn.token_ids) == ("fork 1", (await alone(policy)).token_ids)


async def test_a_fork_that_leaves_takes_its_turns_with_it_and_the_last_one_the_sampler(base):
    one, other = fork_of(base, 1), fork_of(base, 2)
    gone = asyncio.create_task(one.sample(PROMPT, LONG))
    await until(lambda: base.sampler.active)
    one.close()
    assert len((await other.sample(PROMPT, GREEDY)).token_ids) == 24
    assert not one.turns
    gone.cancel()
    other.close()
    assert base.sampler.closed


@pytest.fixture
def untied(tmp_path):
    """A folder of the tiny model with a vocabulary projection of its own."""
    return random_folder(tmp_path / "untied", seed=1)


def random_folder(folder, seed):
    shutil.rmtree(folder, ignore_errors=True)
    config = replace(DecoderConfig.from_folder(tiny_folder()), tie_word_embeddings=False)
    torch.manual_seed(seed)
    save_decoder(ReferenceDecoder(config), folder)
    return folder


@pytest.mark.slow
async def test_adapters_on_the_head_are_sampled_as_alone(untied):
    base = SharedBase(load_decoder(untied))
    targets = ("lm_head", "q_proj")
    one, other = (fork_of(base, seed, targets=targets) for seed in (1, 2))
    # Prompts of other lengths, in several chunks: rows of the head differ from those of a pass.
    prompts = [PROMPT, PROMPT[:3], list(range(3, 60)) * 8]
    for policy in (one, other):
        together = await asyncio.gather(*(policy.sample(prompt, GREEDY) for prompt in prompts))
        for prompt, turn in zip(prompts, together, strict=True):
            expected = await alone(policy, prompt)
            assert turn.token_ids == expected.token_ids
            assert turn.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    for policy in (one, other):
        policy.close()


def test_weights_that_were_replaced_in_a_folder_are_loaded_for_the_next_fork(untied):
    bases = SharedBases()
    kinds = {"dtype": torch.float32, "device": "cpu"}
    first = bases.fork(untied, **kinds)
    assert bases.fork(untied, **kinds).base is first.base
    kept = first.decoder.lm_head.weight.clone()
    weights = untied / "model.safetensors"
    times = weights.stat()
    written = random_folder(untied.with_name("other"), seed=2) / "model.safetensors"
    # A copy, or an archive, of the same size and time.
    os.replace(written, weights)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = bases.fork(untied, **kinds)
    assert torch.equal(second.decoder.lm_head.weight, load_decoder(untied).lm_head.weight)
    assert torch.equal(first.decoder.lm_head.weight, kept)
    assert not torch.equal(second.decoder.lm_head.weight, kept)
    for fork in (first, second):
        fork.close()
