"""Floating-point operations of a training pass, from the architecture and the packed lengths; and the device's peak.

Model FLOPs, as in PaLM (arXiv 2204.02311), but with causal attention at its true half: matrix products over the tokens of a pass,
logits and the end of the last layer where a token is predicted, attention over the keys that each token sees. Recomputed layers
and padding do not count.
"""

from __future__ import annotations

import time
from functools import cache

import torch

from hud.engine.config import DecoderConfig
from hud.engine.learn.packed_pass import PackedPass
from hud.engine.lora import LoraConfig

_TRIALS = 5


def pass_flops(config: DecoderConfig, batch: PackedPass, lora: LoraConfig | None = None) -> float:
    """Return the floating-point operations of a pass and its gradient; a product and a sum are two.

    A product costs as much again for the gradient of its input, and once more for that of its weight, where it is
    trained. With LoRA those of the base are not.
    """
    tokens, predicted = len(batch.input_ids), len(batch.targets)
    dense, adapted = _products(config, tokens, predicted, lora)
    products = dense + predicted * config.hidden_size * config.vocab_size
    # A token at place p sees itself and the p before it, wherever those are computed.
    seen = int(batch.positions.sum()) + tokens
    attended = 2 * config.num_attention_heads * config.head_dim * config.num_hidden_layers * seen
    if lora is None:
        return 6.0 * products + 6.0 * attended
    return 4.0 * products + 6.0 * attended + 6.0 * adapted


def _products(
    config: DecoderConfig, tokens: int, predicted: int, lora: LoraConfig | None
) -> tuple[int, int]:
    """Return how many products of a number and a weight the layers' matrices, and their adapters, ask for."""
    width, inner = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    shapes = {
        "q_proj": (width, queries),
        "k_proj": (width, keys),
        "v_proj": (width, keys),
        "o_proj": (queries, width),
        "gate_proj": (width, inner),
        "up_proj": (width, inner),
        "down_proj": (inner, width),
    }
    # After the last layer's attention only tokens that predict another are computed.
    everywhere, finished = tokens * config.num_hidden_layers, predicted - tokens
    times = {
        name: everywhere + (0 if name in ("q_proj", "k_proj", "v_proj") else finished)
        for name in shapes
    }
    dense = sum(into * out * times[name] for name, (into, out) in shapes.items())
    if lora is None:
        return dense, 0
    return dense, sum(
        lora.rank * sum(shapes[name]) * times[name] for name in lora.targets if name in shapes
    )


@cache
def ceiling(device: torch.device, dtype: torch.dtype) -> float:
    """Return the floating-point operations a second of a large matrix product here, measured once for each process."""
    side = 8192 if device.type == "cuda" else 512  # On a CPU smaller matrices suffice.
    # Not random: what is drawn from torch's generator is part of what training resumes from.
    left, right = (torch.ones(side, side, device=device, dtype=dtype) for _ in range(2))
    best = float("inf")
    for _ in range(_TRIALS + 1):  # The first one warms up; being slow, it does not count.
        began = time.perf_counter()
        product = left @ right
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
        del product
    return 2.0 * side**3 / best
