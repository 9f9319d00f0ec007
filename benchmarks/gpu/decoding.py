"""Decoding over memory bandwidth, and over `transformers`' continuous batching, on the same random weights."""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass

import torch
from counts import Counts
from qwen3 import bandwidth, random_decoder, release, synchronized
from records import report
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.generation.continuous_batching.utils import WorkloadHints

from hud.engine.config import DecoderConfig
from hud.engine.decoder import Decoder
from hud.engine.sample.kv_cache import PAGE_TOKENS, bytes_for
from hud.engine.sample.sampler import Sampler
from hud.trace import SamplingParams

FLOOR_BAR, PEER_BAR = 0.6, 3.0


@dataclass(frozen=True)
class Load:
    """What is decoded."""

    sequences: int = 256
    prompt: int = 512
    new: int = 512
    rounds: int = 2


def decoding(name: str, config: DecoderConfig, load: Load, device: torch.device) -> list[bool]:
    """Measure one shape and print it; return which bars are held."""
    decoder = random_decoder(config, device)
    floor = floor_rate(config, load, bandwidth(device))
    whole, decode = our_rates(decoder, load, device)
    release(device)
    theirs = their_rates(decoder, load, device)
    peer = statistics.median(theirs)
    mine = statistics.median(whole)
    print(
        f"  {name}: decode {statistics.median(decode):,.0f} tokens/s, memory bandwidth allows {floor:,.0f}; "
        f"whole runs: ours {mine:,.0f} tokens/s, continuous batching of transformers {peer:,.0f}",
        flush=True,
    )
    return [
        report(
            f"{name}, decode over its floor",
            statistics.median(decode) / floor,
            "times",
            bar=FLOOR_BAR,
        ),
        report(
            f"{name}, ours over transformers", mine / peer, "times", bar=PEER_BAR, ratio=mine / peer
        ),
    ]


def floor_rate(config: DecoderConfig, load: Load, rate: float) -> float:
    """Return the tokens a second at which every byte that a step must read is read at full bandwidth."""
    counts = Counts(config, element=2)
    context = load.prompt + load.new / 2
    step = counts.weights * counts.element + counts.cache(load.sequences * context)
    return load.sequences * rate / step


def our_rates(
    decoder: Decoder, load: Load, device: torch.device
) -> tuple[list[float], list[float]]:
    """Return tokens a second of whole runs, and of their decode steps, round for round."""
    length = load.prompt + load.new
    dtype = next(decoder.parameters()).dtype
    pages = load.sequences * -(-(length + 1) // PAGE_TOKENS) + 1
    budget = pages * bytes_for(decoder.config, 1, PAGE_TOKENS, dtype)
    sampler = Sampler(decoder, slots=load.sequences, max_context=length, cache_bytes=budget)

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
    for _ in range(load.rounds):
        prefill, everything = seconds(1), seconds(load.new)
        whole.append(load.sequences * load.new / everything)
        decode.append(load.sequences * (load.new - 1) / max(everything - prefill, 1e-9))
    sampler.close()
    return whole, decode


def their_rates(decoder: Decoder, load: Load, device: torch.device) -> list[float]:
    """Return tokens a second of `transformers`' continuous batching, over the very same tensors."""
    config = decoder.config
    shape = {key: value for key, value in config.to_dict().items() if key != "architectures"}
    with torch.device("meta"):
        model = Qwen3ForCausalLM(Qwen3Config(**shape, attn_implementation="sdpa"))
    rotary = model.model.rotary_emb
    model.load_state_dict(decoder.state_dict(), strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(rotary)(model.config).to(device)
    model.eval()
    settings = GenerationConfig(
        do_sample=True, max_new_tokens=load.new, eos_token_id=-1, pad_token_id=0
    )
    batching = ContinuousBatchingConfig()
    if device.type == "cpu":
        batching = ContinuousBatchingConfig(num_blocks=4 * load.sequences, max_batch_tokens=512)
    rates = []
    hints = WorkloadHints(load.prompt, load.new, load.sequences)
    with model.continuous_batching_context_manager(
        generation_config=settings,
        continuous_batching_config=batching,
        workload_hints=hints,
        block=True,
        timeout=5,
    ) as manager:

        def run(new: int) -> float:
            prompts = random_prompts(config, load)
            started = synchronized(device)
            manager.add_requests(inputs=prompts, max_new_tokens=new)
            left, drawn = len(prompts), 0
            while left:
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    left, drawn = left - 1, drawn + len(result.generated_tokens)
                elif result is None and not manager.is_running():
                    raise RuntimeError("The continuous batching of transformers ended early.")
            assert drawn == len(prompts) * new
            return drawn / (synchronized(device) - started)

        run(min(16, load.new))
        rates += [run(load.new) for _ in range(load.rounds)]
    return rates


def random_prompts(config: DecoderConfig, load: Load) -> list[list[int]]:
    """Return prompts that no cache knows."""
    return torch.randint(9, config.vocab_size, (load.sequences, load.prompt)).tolist()
