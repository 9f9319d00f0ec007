"""Our sampler over the continuous batching of `transformers`, on the same random weights."""

from __future__ import annotations

import statistics

import torch
from decoding import Load, our_rates, random_prompts
from qwen3 import random_decoder, release, synchronized
from records import report
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.generation.continuous_batching.utils import WorkloadHints
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from hud.engine.config import DecoderConfig
from hud.engine.models.reference_decoder import ReferenceDecoder

BAR = 5.0


def against_transformers(
    name: str, config: DecoderConfig, load: Load, device: torch.device
) -> list[bool]:
    """Compare whole runs with the continuous batching of `transformers`; return whether the bar is held."""
    set_verbosity_error()
    disable_progress_bar()
    decoder = random_decoder(config, device)
    mine = statistics.median(our_rates(decoder, load, device)[0])
    print(f"  {name}: ours {mine:,.0f} tokens/s", flush=True)
    release(device)
    peer = statistics.median(their_rates(decoder, load, device))
    return [
        report(
            f"{name}, ours over transformers",
            mine / peer,
            "times",
            bar=BAR,
            ratio=mine / peer,
        )
    ]


def their_rates(decoder: ReferenceDecoder, load: Load, device: torch.device) -> list[float]:
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
