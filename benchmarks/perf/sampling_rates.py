"""Rates of sampling a fixed number of tokens, of a policy and of `transformers`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter

import torch

from hud.engine.policy import Policy
from hud.trace import SamplingParams


def policy_rate(policy: Policy, prompts: Sequence[list[int]], lengths: Sequence[int]) -> float:
    """Return tokens a second of a policy that samples `lengths` tokens after the prompts, all at once."""

    async def sample() -> list[int]:
        turns = (
            policy.sample(prompt, SamplingParams(max_tokens=length))
            for prompt, length in zip(prompts, lengths, strict=True)
        )
        return [len(turn.token_ids) for turn in await asyncio.gather(*turns)]

    started = perf_counter()
    drawn = asyncio.run(sample())
    elapsed = perf_counter() - started
    assert drawn == list(lengths)
    return sum(drawn) / elapsed


def generate(model: torch.nn.Module, prompts: Sequence[list[int]], tokens: int) -> None:
    """Sample so many tokens after each prompt, all of one length, in one batch of `generate`."""
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        )
