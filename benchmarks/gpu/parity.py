"""The sampler's logprobs against the trainer's, on the same tokens and weights in bf16."""

from __future__ import annotations

import asyncio

import numpy as np
import torch
from qwen3 import random_decoder
from records import report

from hud.engine.config import DecoderConfig
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.sample.sampler import Sampler
from hud.learning.datums import Datum
from hud.trace import SamplingParams

BAR = 0.05
"""Largest mean difference; in bf16 about 0.01 is the rounding of the hidden states."""


def parity(
    name: str,
    config: DecoderConfig,
    device: torch.device,
    *,
    sequences: int = 32,
    prompt: int = 128,
    new: int = 256,
) -> list[bool]:
    """Sample and score again; report mean, 99th percentile and maximum of the absolute differences."""
    decoder = random_decoder(config, device)
    prompts = torch.randint(9, config.vocab_size, (sequences, prompt)).tolist()
    sampler = Sampler(decoder)

    async def sampled():
        params = SamplingParams(max_tokens=new)
        return await asyncio.gather(*(sampler.sample(one, params, frozenset()) for one in prompts))

    turns = asyncio.run(sampled())
    sampler.close()
    mask = np.repeat(np.float32([0, 1]), [prompt, new])
    zeros = np.zeros_like(mask)
    datums = [
        Datum(
            tokens=np.asarray([*shown, *turn.token_ids]),
            mask=mask,
            logprobs=np.float32([*[0.0] * prompt, *turn.logprobs]),
            advantages=zeros,
            weights=mask,
            temperatures=np.ones_like(mask),
            traj_idx=number,
        )
        for number, (shown, turn) in enumerate(zip(prompts, turns, strict=True))
    ]
    trained = LocalTrainer(decoder).forward(datums)
    gaps = np.abs(
        np.concatenate(
            [
                found[prompt:] - datum.logprobs[prompt:]
                for found, datum in zip(trained, datums, strict=True)
            ]
        )
    )
    title = f"{name}, sampler against trainer logprobs"
    report(f"{title}, p99", float(np.quantile(gaps, 0.99)), "nats")
    report(f"{title}, max", float(gaps.max()), "nats")
    return [report(f"{title}, mean", float(gaps.mean()), "nats", bar=BAR, at_most=True)]
