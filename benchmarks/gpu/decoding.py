"""Decoding over memory bandwidth, with random weights."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass

import torch
from counts import Counts
from qwen3 import bandwidth, random_decoder, synchronized
from records import report

from hud.engine.config import DecoderConfig
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.sampler import Sampler
from hud.trace import SamplingParams

BAR = 0.75


@dataclass(frozen=True)
class Load:
    """The sequences that are decoded, and their lengths in tokens."""

    sequences: int = 256
    prompt: int = 512
    new: int = 512
    rounds: int = 2


def decoding(name: str, config: DecoderConfig, load: Load, device: torch.device) -> list[bool]:
    """Measure one shape and print it; return whether its bar is held."""
    rate = bandwidth(device)
    floor = floor_rate(config, load, rate)
    print(f"  {name}: {rate / 1e12:.2f} TB/s, which allow {floor:,.0f} tokens/s", flush=True)
    decoder = random_decoder(config, device)
    whole, decode = our_rates(decoder, load, device)
    report(f"{name}, whole runs", statistics.median(whole), "tokens/s")
    return [
        report(
            f"{name}, decode over its floor",
            statistics.median(decode) / floor,
            "times",
            bar=BAR,
        )
    ]


def floor_rate(config: DecoderConfig, load: Load, rate: float) -> float:
    """Return the tokens a second at which every byte that a step must read is read at full bandwidth."""
    counts = Counts(config, element=2)
    context = load.prompt + load.new / 2
    step = counts.weights * counts.element + counts.cache(load.sequences * context)
    return load.sequences * rate / step


def our_rates(
    decoder: ReferenceDecoder, load: Load, device: torch.device
) -> tuple[list[float], list[float]]:
    """Return tokens a second of whole runs, and of their decode steps, round for round."""
    sampler = Sampler(decoder)
    print(f"    key-value cache: {sampler.facts}", flush=True)

    def seconds(new: int) -> float:
        prompts = random_prompts(decoder.config, load)
        params = SamplingParams(max_tokens=new)

        async def sample() -> int:
            draws = (sampler.sample(prompt, params, frozenset()) for prompt in prompts)
            return sum(len(drawn.token_ids) for drawn in await asyncio.gather(*draws))

        started = synchronized(device)
        drawn = asyncio.run(sample())
        elapsed = synchronized(device) - started
        assert drawn == load.sequences * new
        return elapsed

    seconds(min(16, load.new))
    whole, decode = [], []
    for number in range(load.rounds):
        prefill, everything = seconds(1), seconds(load.new)
        whole.append(load.sequences * load.new / everything)
        decode.append(load.sequences * (load.new - 1) / max(everything - prefill, 1e-9))
        print(f"    round {number + 1}: decode {decode[-1]:,.0f} tokens/s", flush=True)
    sampler.close()
    return whole, decode


def random_prompts(config: DecoderConfig, load: Load) -> list[list[int]]:
    """Return prompts that no cache knows."""
    return torch.randint(9, config.vocab_size, (load.sequences, load.prompt)).tolist()
