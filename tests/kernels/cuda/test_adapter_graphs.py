"""Recorded steps compute each row with its own adapter: the tokens of the synchronous path, whatever the batch."""

import asyncio
from copy import deepcopy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.engine.random_decoder import CONFIG, random_decoder
from tests.engine.rounding import logprob_tolerance

from hud.engine.lora import LoraConfig, attach, lora_layers, lora_parameters
from hud.engine.sample.adapter_bank import AdapterBank
from hud.engine.sample.plain_runner import PlainRunner
from hud.engine.sample.request import Turn, wait_for_turn
from hud.trace import SamplingParams
from hud_kernels.cuda.decode_step import KINDS
from hud_kernels.cuda.runner import CudaRunner

SLOTS = 3
EXTRAS = [{}, {"followed": True}, {"top": 2}, {"stopped": lambda ids: len(ids) == 9}]
CUTS = [{}, {"top_p": 0.8}, {"temperature": 0.0}]


def put(bank, base, seed, rank):
    """Return a fork of the bank with a random adapter."""
    adapted = deepcopy(base)
    attach(adapted, LoraConfig(rank=rank, alpha=8))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in lora_parameters(adapted).values():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return SimpleNamespace(adapter=bank.put(f"fork {seed}", lora_layers(adapted)))


async def play(sampler, forks, seed):
    rng = np.random.default_rng(seed)
    turns = []
    for number in range(12):
        params = SamplingParams(
            max_tokens=int(rng.integers(3, 40)), seed=number, **CUTS[number % 3]
        )
        made = Turn(
            prompt=rng.integers(0, CONFIG.vocab_size, rng.integers(2, 120)).tolist(),
            params=params,
            stop_ids=frozenset([7, 8]),
            fork=forks[rng.integers(len(forks))],
            **EXTRAS[rng.integers(len(EXTRAS))],
        )
        turns.append(wait_for_turn(lambda tell, made=made: sampler.submit(made, tell)))
    return await asyncio.gather(*turns)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_each_row_has_its_adapter(sampler_of, seed):
    base, found = random_decoder().requires_grad_(False), []
    everything = len(KINDS) * SLOTS
    for kind in (PlainRunner, CudaRunner):
        bank = AdapterBank(base)
        forks = [None, put(bank, base, 1, rank=4), put(bank, base, 2, rank=8)]
        sampler = sampler_of(kind, bank.decoder, slots=SLOTS, max_context=256, bank=bank)
        turns = asyncio.run(play(sampler, forks, seed))
        # A wider bank has other tensors, and so has one with another adapter in freed columns other numbers.
        with sampler.exclusive(in_flight=True):
            forks.append(put(bank, base, 3, rank=100))
            bank.drop(forks.pop(1).adapter)
            forks.append(put(bank, base, 4, rank=3))
        found.append([*turns, *asyncio.run(play(sampler, forks, seed + 10))])
        sampler.close()
        if kind is CudaRunner:
            assert sampler._runner.graphs.recordings == 2 * everything
    for mine, theirs in zip(*found, strict=True):
        assert mine.version == theirs.version
        assert mine.token_ids == theirs.token_ids
        np.testing.assert_allclose(
            mine.logprobs, theirs.logprobs, rtol=0, atol=logprob_tolerance(CONFIG, context=256)
        )
    assert {turn.version for turn in found[1]} > {"fork 1", "fork 2", "fork 4"}
