"""Qwen3 shapes with random weights, and the measured limits of a device: bandwidth and matrix products."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import torch

from hud.engine.config import DecoderConfig
from hud.engine.models.reference_decoder import ReferenceDecoder

SMALL = DecoderConfig(
    model_type="qwen3",
    vocab_size=151_936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    rope_theta=1_000_000.0,
    tie_word_embeddings=True,
    max_position_embeddings=2048,
    dtype="bfloat16",
)
"""Qwen3-0.6B, but for the length of its context."""
LARGE = replace(
    SMALL,
    hidden_size=2560,
    intermediate_size=9728,
    num_hidden_layers=36,
    num_attention_heads=32,
)
"""Qwen3-4B, likewise."""
LARGEST = replace(
    LARGE,
    hidden_size=4096,
    intermediate_size=12_288,
    tie_word_embeddings=False,
)
"""Qwen3-8B, likewise."""
TINY = replace(
    SMALL,
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=256,
)


def random_decoder(config: DecoderConfig, device: torch.device) -> ReferenceDecoder:
    """Return a decoder with normal weights in bf16, made on the device."""
    with torch.device(device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            decoder = ReferenceDecoder(config)
        finally:
            torch.set_default_dtype(before)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for parameter in decoder.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.02, generator=generator)
    return decoder.eval()


def synchronized(device: torch.device) -> float:
    """Return the time, once the device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()


def release(device: torch.device) -> None:
    """Give the memory of what is no longer used back to the device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def bandwidth(device: torch.device) -> float:
    """Return bytes a second, read and written, of a copy that no cache holds."""
    count = 1 << (30 if device.type == "cuda" else 24)
    source = torch.empty(count, dtype=torch.bfloat16, device=device).fill_(1)
    target = torch.empty_like(source)
    return 4 * count / _fastest(lambda: target.copy_(source), device)


def product_rate(device: torch.device) -> float:
    """Return operations a second of a large matrix product in bf16."""
    side = 8192 if device.type == "cuda" else 256
    left, right = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    return 2 * side**3 / _fastest(lambda: left @ right, device)


def _fastest(work, device: torch.device) -> float:
    work()
    times = []
    for _ in range(20):
        started = synchronized(device)
        work()
        times.append(synchronized(device) - started)
    return min(times)
