"""Sampling against `transformers.generate`: the same tiny weights, 64 prompts of 32 tokens, 64 new tokens each.

Prints tokens a second of both, in turn, and the ratio of their medians. `transformers` is given its best thread
setting; ours is the sampler's own.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import torch
from measure import seconds
from records import report
from sampling_rates import generate
from sizes import size
from transformers import AutoModelForCausalLM

from hud.engine.policy import Policy
from hud.engine.sample.options import SamplerOptions
from hud.engine.tiny_model import create_tiny
from hud.trace import SamplingParams

SEQUENCES, PROMPT, NEW, ROUNDS = size((64, 32, 64, 5), (2, 4, 4, 1))
WORDS = [f"the service {name}-{role} answers late" for name in "abcdefgh" for role in ("api", "db")]


async def ours(policy: Policy, prompts: list[list[int]]) -> float:
    started = perf_counter()
    params = SamplingParams(max_tokens=NEW)
    draws = (policy.sampler.sample(prompt, params, frozenset()) for prompt in prompts)
    drawn = await asyncio.gather(*draws)
    return sum(len(one.token_ids) for one in drawn) / (perf_counter() - started)


def theirs(model: torch.nn.Module, prompts: list[list[int]]) -> float:
    return max(with_threads(model, prompts, threads) for threads in {1, torch.get_num_threads()})


def with_threads(model: torch.nn.Module, prompts: list[list[int]], threads: int) -> float:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    elapsed = seconds(lambda: generate(model, prompts, NEW))
    torch.set_num_threads(before)
    return NEW * len(prompts) / elapsed


async def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        create_tiny(folder, WORDS, vocab_size=1024, hidden=128, layers=4)
        policy = Policy.load(folder, sampling=SamplerOptions(slots=SEQUENCES))
        model = AutoModelForCausalLM.from_pretrained(folder).eval()
        size = policy.decoder.config.vocab_size
        rates: tuple[list[float], list[float]] = ([], [])
        for round_number in range(ROUNDS + 1):
            # New prompts each time, so that nothing is found in the cache.
            generator = torch.Generator().manual_seed(round_number)
            prompts = torch.randint(0, size, (SEQUENCES, PROMPT), generator=generator).tolist()
            pair = await ours(policy, prompts), await asyncio.to_thread(theirs, model, prompts)
            if round_number:  # The first round warms both up.
                rates[0].append(pair[0])
                rates[1].append(pair[1])
        policy.close()
        mine, reference = map(statistics.median, rates)
        parameters = sum(parameter.numel() for parameter in policy.decoder.parameters())
        what = f"{parameters / 1e6:.2f}M parameters, fp32, {SEQUENCES} x ({PROMPT} + {NEW}) tokens"
        report(what, mine, "tokens/s", peer="transformers generate", peer_value=reference)


if __name__ == "__main__":
    asyncio.run(main())
