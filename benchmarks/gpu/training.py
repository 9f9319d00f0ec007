"""The trainer's operations a second over those of a large matrix product, with full weights and with LoRA."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from counts import Counts
from qwen3 import product_rate, random_decoder, synchronized
from records import report
from shapes import datums

from hud.engine.config import DecoderConfig
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.learn.optimizer_state import OptimizerOptions
from hud.engine.learn.options import TrainerOptions
from hud.engine.lora import LoraConfig
from hud.learning.datums import Datum

BARS = {("4B", "full"): 0.50, ("4B", "LoRA"): 0.45}
RANK = 16
SHORTEST = 8
"""The longest of spread lengths over the shortest is this squared."""


def training(
    name: str,
    kind: str,
    lengths: str,
    config: DecoderConfig,
    device: torch.device,
    *,
    tokens: int = 65_536,
    length: int = 1024,
    pass_tokens: int = 16_384,
    rounds: int = 2,
) -> list[bool]:
    """Measure forward and backward, and an optimizer step; return whether the bar is held.

    `kind`: full or LoRA; `lengths`: equal (`length` tokens each) or spread around it.
    """
    title = f"{name}, {kind}, {lengths} lengths"
    ceiling = product_rate(device)
    print(f"  {title}: a matrix product has {ceiling / 1e12:.2f} Tflop/s", flush=True)
    decoder = random_decoder(config, device)
    lora = LoraConfig(rank=RANK) if kind == "LoRA" else None
    trainer = LocalTrainer(
        decoder,
        lora=lora,
        pass_tokens=pass_tokens,
        # With two moments in fp32, 4 billion weights and their masters do not fit into 80 GB.
        options=TrainerOptions(OptimizerOptions(states="8bit"), recompute_layers=True),
    )
    each = [length] * (tokens // length) if lengths == "equal" else spread(tokens, length)
    batch = datums_of_lengths(config.vocab_size, each)
    counts = Counts(config, element=2)
    needed = counts.gradient(
        sum(one - 1 for one in each),
        sum((one - 1) * one / 2 for one in each),
        sum(one // 2 for one in each),
        adapters=lora is not None,
    )

    def gradient() -> float:
        started = synchronized(device)
        trainer.forward_backward(batch, "ppo")
        return synchronized(device) - started

    gradient()
    elapsed = statistics.median(gradient() for _ in range(rounds))
    started = synchronized(device)
    trainer.optim_step(1e-6)
    step = synchronized(device) - started
    used = (
        f", {torch.cuda.max_memory_allocated() / 2**30:.0f} GiB at most"
        if device.type == "cuda"
        else ""
    )
    print(
        f"  {title}: {sum(each) / elapsed:,.0f} tokens/s, {needed / elapsed / 1e12:.2f} Tflop/s; "
        f"first optimizer step {step:.2f} s{used}",
        flush=True,
    )
    return [
        report(
            f"{title}, model FLOPs utilization",
            needed / elapsed / ceiling,
            "of a matrix product",
            bar=BARS.get((name, kind)),
        )
    ]


def spread(tokens: int, length: int) -> list[int]:
    """Return even lengths that sum to about `tokens`, evenly spaced on a logarithmic scale around `length`."""
    count = max(2, tokens // length)
    steps = np.linspace(-1.0, 1.0, count)
    shares = float(SHORTEST) ** steps
    even = (shares / shares.sum() * tokens / 2).astype(int).clip(2) * 2
    return [int(one) for one in np.random.default_rng(0).permutation(even)]


def datums_of_lengths(vocabulary: int, lengths: Sequence[int]) -> list[Datum]:
    """Return one datum of random tokens for each length; the second half of each is sampled."""
    return [
        replace(datums(vocabulary, 1, length)[0], traj_idx=number)
        for number, length in enumerate(lengths)
    ]
