"""Steps that compute prompts while other sequences decode: their time over the device's, and how long a token waits.

Prompts go through packed passes of at most `HUD_PREFILL_MS` each (`hud_kernels/cuda/prefill/budget.py`).
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from time import perf_counter

import torch
from qwen3 import random_decoder
from records import report
from torch.profiler import ProfilerActivity, profile

from hud.engine.config import DecoderConfig
from hud.engine.sample.request import Turn, wait_for_turn
from hud.engine.sample.sampler import Sampler
from hud.trace import SamplingParams

BAR = 1.15


def mixing(
    name: str,
    config: DecoderConfig,
    device: torch.device,
    *,
    sequences: int = 192,
    prompt: int = 512,
    new: int = 512,
    arrivals: int = 64,
) -> list[bool]:
    """Let prompts arrive while others decode; report the time of that over the device's, and the longest wait for a token.

    On a CPU, where the device's time is the same, it is the time alone.
    """
    decoder = random_decoder(config, device)
    sampler = Sampler(decoder)

    def turns(count: int, tokens: int) -> list[asyncio.Future]:
        prompts = torch.randint(9, config.vocab_size, (count, prompt)).tolist()
        params = SamplingParams(max_tokens=tokens)
        return [asyncio.ensure_future(sampler.sample(one, params, frozenset())) for one in prompts]

    def followed(moments: list[float]) -> asyncio.Future:
        """Sample a sequence, each of whose tokens adds its moment."""
        whole = torch.randint(9, config.vocab_size, (prompt,)).tolist()
        params = SamplingParams(max_tokens=new)
        turn = Turn(prompt=whole, params=params, stop_ids=frozenset(), followed=True)

        def submit(listener):
            def heard() -> None:
                moments.append(perf_counter())
                listener()

            return sampler.submit(turn, heard)

        return asyncio.ensure_future(wait_for_turn(submit))

    waits: list[float] = []

    async def arrive(measured: AbstractContextManager[object] | None = None) -> float:
        first = turns(sequences, 1)
        await asyncio.gather(*first)
        moments: list[float] = []
        decoding = [followed(moments), *turns(sequences - 1, new)]
        await asyncio.gather(*turns(1, 1))  # Admitted after the others.
        with measured or nullcontext():
            started = perf_counter()
            await asyncio.gather(*turns(arrivals, 2))
            elapsed = perf_counter() - started
        between = [started] + [moment for moment in moments if moment >= started]
        waits.append(max((later - one for one, later in pairwise(between)), default=0.0))
        for one in decoding:
            one.cancel()
        await asyncio.gather(*decoding, return_exceptions=True)
        return elapsed

    asyncio.run(arrive())
    elapsed = asyncio.run(arrive())
    tokens = arrivals * prompt
    report(f"{name}, prompt tokens beside {sequences} decoding sequences", tokens / elapsed, "/s")
    report(f"{name}, longest wait for a token while prompts arrive", waits[-1] * 1000, "ms")
    if device.type != "cuda":
        sampler.close()
        return [report(f"{name}, mixed steps, time", elapsed, "s")]
    found = profile(activities=[ProfilerActivity.CUDA])
    whole = asyncio.run(arrive(found))
    busy = sum(one.self_device_time_total for one in found.key_averages()) / 1e6
    sampler.close()
    # Of the profiled run the share of the device; the profiler slows the host, so the time is of the run before.
    print(f"  {name}: {elapsed:.3f} s, profiled {whole:.3f} s, device {busy:.3f} s", flush=True)
    return [
        report(
            f"{name}, mixed steps, time over device time",
            elapsed / busy,
            "times",
            bar=BAR,
            at_most=True,
        )
    ]
