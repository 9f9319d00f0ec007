"""How long a sampler stands still while the weights that it samples with are changed under it."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path
from time import perf_counter

import torch
from qwen3 import random_decoder
from records import report

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.policy import Policy
from hud.engine.tiny_model import create_tiny
from hud.trace import SamplingParams

BAR = 5.0


def swapping(
    name: str, config: DecoderConfig, device: torch.device, *, swaps: int = 30, new: int = 256
) -> list[bool]:
    """Swap under sequences in flight and print it; return whether the bar is held.

    A swap is what the platform does after an optimizer step in a process that samples too: keep the sampler between two
    steps, forget prefixes, name the weights anew. The weights themselves are the trainer's own, so nothing is copied.
    It waits for the decode step that is on its way; how long one takes stands beside it.
    """
    decoder = random_decoder(config, device)
    with tempfile.TemporaryDirectory() as folder:
        create_tiny(Path(folder), ["a chat format"], vocab_size=300, hidden=32, layers=1)
        chat = ChatFormat(Path(folder), config)
    chat.stop_ids = frozenset()
    policy = Policy(decoder, chat)

    def swap(number: int) -> float:
        started = perf_counter()
        with policy.exclusive(in_flight=True):
            policy.checkpoint = f"step-{number}"
        return (perf_counter() - started) * 1e3

    async def measured() -> tuple[list[float], float]:
        prompts = torch.randint(9, config.vocab_size, (4, 64)).tolist()
        params = SamplingParams(max_tokens=new)
        await policy.sample(prompts[0], SamplingParams(max_tokens=2))
        started = perf_counter()
        await policy.sample(prompts[0], params)
        step = (perf_counter() - started) * 1e3 / new
        draws = [asyncio.ensure_future(policy.sample(prompt, params)) for prompt in prompts]
        times = []
        while len(times) < swaps:
            if all(draw.done() for draw in draws):
                draws = [asyncio.ensure_future(policy.sample(prompt, params)) for prompt in prompts]
            await asyncio.sleep(0.005)
            times.append(await asyncio.to_thread(swap, len(times)))
        await asyncio.gather(*draws)
        return times, step

    times, step = asyncio.run(measured())
    policy.close()
    median = statistics.median(times)
    print(
        f"  {name}: swap {median:.2f} ms (median of {swaps}, at most {max(times):.2f}); a decode step {step:.2f} ms",
        flush=True,
    )
    return [report(f"{name}, swap", median, "ms", bar=BAR, at_most=True)]
