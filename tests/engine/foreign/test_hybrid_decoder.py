"""Qwen3.5 and Qwen3-Next natively: packed training, sampling with saved states and adapters, all as `transformers` computes them."""

import asyncio
from copy import deepcopy

import pytest
import torch
from tests.engine.foreign.test_state_decoder import plain_logprobs, sample, write
from tests.engine.waiting import slowed, until
from transformers import AutoConfig

from hud.engine.exactness.batches import (
    check_adapter,
    compare,
    compare_gradients,
    move,
    packed_logprobs,
)
from hud.engine.exactness.batches import (
    plain_logprobs as all_logprobs,
)
from hud.engine.exactness.check import check_config
from hud.engine.foreign.hybrid_decoder import HybridDecoder
from hud.engine.foreign.verdicts import Verdict
from hud.engine.models.attention import chains
from hud.engine.pretrained import load_decoder
from hud.engine.sample.options import SamplerOptions
from hud.engine.sample.request import Turn, wait_for_turn
from hud.engine.sample.sampler import Sampler
from hud.engine.sample.weight_swap import SwappingSampler
from hud.trace import SamplingParams

SLOW = ("qwen3_5_moe_text", "qwen3_next")
KINDS = ("qwen3_5_text", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW))
LENGTHS, TREE = (70, 9, 66), (-1, 0, 1)
PROMPT = list(range(3, 40))


@pytest.fixture(params=KINDS)
def models(request, tmp_path, monkeypatch):
    """Return a plain model and its decoder."""
    monkeypatch.setattr("hud.engine.foreign.verdicts.checked", lambda folder: Verdict("packed"))
    plain = write(tmp_path, request.param)
    decoder = load_decoder(tmp_path)
    assert isinstance(decoder, HybridDecoder)
    return plain, decoder


@pytest.mark.parametrize("kind", KINDS)
def test_the_check_finds_it_exact_natively(kind):
    assert check_config(AutoConfig.for_model(kind)) == Verdict("packed")


def parts():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(3, 96, (length,), generator=generator) for length in LENGTHS]


def test_sequences_longer_than_a_chunk_have_the_gradient_of_transformers(models):
    plain, decoder = models
    for model in models:
        model.requires_grad_(True)
    theirs = torch.cat([all_logprobs(plain, ids) for ids in parts()])
    ours = packed_logprobs(decoder, parts())
    compare("packing", ours, theirs)
    compare_gradients(decoder, plain, ours, theirs)


def test_a_tree_of_sequences_has_the_gradient_of_whole_ones(models):
    plain, decoder = models
    for model in models:
        model.requires_grad_(True)
    rows = parts()
    theirs = []
    for chain, row in zip(chains(TREE), rows, strict=True):
        whole = torch.cat([rows[other] for other in chain])
        theirs.append(all_logprobs(plain, whole)[-len(row) :])
    ours = packed_logprobs(decoder, rows, TREE)
    compare("packing", ours, torch.cat(theirs))
    compare_gradients(decoder, plain, ours, torch.cat(theirs))


def check(plain, prompts, turns):
    for prompt, turn in zip(prompts, turns, strict=True):
        with torch.no_grad():
            theirs = plain_logprobs(plain, prompt + turn.token_ids)[len(prompt) - 1 :]
        torch.testing.assert_close(torch.tensor(turn.logprobs), theirs, atol=1e-4, rtol=0)


def test_groups_next_turns_and_common_beginnings_reuse_states_exactly(models):
    plain, decoder = models
    sampler = Sampler(decoder, slots=4)
    system = list(range(3, 73))
    prompt = [*system, *range(20, 30)]
    group = sample(sampler, prompt, prompt, prompt, prompt)
    check(plain, [prompt] * 4, group)
    assert [turn.cached_tokens for turn in group] == [0, *[len(prompt) - 1] * 3]
    later = [*prompt, *group[0].token_ids, 40, 41]
    (second,) = sample(sampler, later)
    check(plain, [later], [second])
    assert second.cached_tokens == len(prompt) + len(group[0].token_ids) - 1
    others = [[*system, *range(start, start + 20)] for start in (50, 40, 60)]
    turns = [sample(sampler, other)[0] for other in others]
    check(plain, others, turns)
    assert [turn.cached_tokens for turn in turns] == [0, len(system), len(system)]
    sampler.close()


@pytest.mark.parametrize(
    ("states", "memory"), [pytest.param(3, 90_000, marks=pytest.mark.slow), (1, 400_000)]
)
def test_it_samples_exactly_where_states_or_pages_are_short(models, monkeypatch, states, memory):
    plain, decoder = models
    monkeypatch.setattr("hud.engine.sample.kv_cache.SLOT_STATES", states)
    sampler = Sampler(decoder, slots=6, max_context=160, cache_bytes=memory)
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(3, 96, (90,), generator=generator).tolist() for _ in range(6)]
    prompts += [prompt[:60] + prompts[0][:9] for prompt in prompts]

    async def turns():
        params = SamplingParams(max_tokens=40, seed=1)
        return await asyncio.gather(
            *(sampler.sample(prompt, params, frozenset()) for prompt in prompts)
        )

    check(plain, prompts, asyncio.run(turns()))
    check(plain, prompts, asyncio.run(turns()))
    sampler.close()


async def drawing(samplers, params):
    """Begin a turn, and return its task once it is being sampled."""
    turn = Turn(prompt=PROMPT, params=params, stop_ids=frozenset())
    task = asyncio.create_task(wait_for_turn(lambda listener: samplers.submit(turn, listener)))
    await until(lambda: samplers.sampler.active and samplers.sampler.active[0].token_ids)
    return task


@pytest.mark.parametrize("in_flight", [False, True])
async def test_a_change_of_weights_leaves_no_state_of_the_old_ones(models, in_flight):
    plain, decoder = models
    samplers = SwappingSampler(decoder, SamplerOptions(slots=2))
    slowed(samplers.sampler)
    old = await drawing(samplers, SamplingParams(max_tokens=60, seed=1))
    before = deepcopy(plain)

    def change():
        with samplers.exclusive(in_flight=in_flight):
            move(decoder, plain)
            samplers.version = "new"

    await asyncio.to_thread(change)
    finished = await old
    assert bool(finished.swaps) == in_flight
    if not in_flight:
        check(before, [PROMPT], [finished])
    fresh = await samplers.sampler.sample(PROMPT, SamplingParams(max_tokens=6), frozenset())
    samplers.close()
    assert (fresh.version, fresh.cached_tokens) == ("new", 0)
    check(plain, [PROMPT], [fresh])


def test_adapters_are_those_of_merged_weights(models):
    plain, decoder = models
    check_adapter(decoder, plain)
