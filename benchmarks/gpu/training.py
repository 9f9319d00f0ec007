"""The trainer's operations a second over those of a large matrix product, with full weights and with LoRA."""

from __future__ import annotations

import statistics

import torch
from counts import Counts
from qwen3 import product_rate, random_decoder, synchronized
from records import report
from shapes import datums

from hud.engine.config import DecoderConfig
from hud.engine.learn.optimizer_state import OptimizerOptions
from hud.engine.learn.options import TrainerOptions
from hud.engine.learn.trainer import Trainer
from hud.engine.lora import LoraConfig

BARS = {"full": 0.45, "LoRA": 0.40}
RANK = 16


def training(
    name: str,
    kind: str,
    config: DecoderConfig,
    device: torch.device,
    *,
    tokens: int = 65_536,
    length: int = 1024,
    pass_tokens: int = 16_384,
    rounds: int = 2,
) -> list[bool]:
    """Measure forward and backward of one kind and print it, an optimizer step beside it; return whether its bar is held."""
    decoder = random_decoder(config, device)
    lora = LoraConfig(rank=RANK) if kind == "LoRA" else None
    trainer = Trainer(
        decoder,
        lora=lora,
        pass_tokens=pass_tokens,
        # With two moments in fp32, 4 billion weights and their masters do not fit into 80 GB.
        options=TrainerOptions(OptimizerOptions(states="8bit"), recompute_layers=True),
    )
    batch = datums(config.vocab_size, tokens // length, length)
    counts = Counts(config, element=2)
    sequences = len(batch)
    needed = counts.gradient(
        sequences * (length - 1),
        sequences * (length - 1) * length / 2,
        sequences * length // 2,
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
    ceiling = product_rate(device)
    print(
        f"  {name}, {kind}: {tokens / elapsed:,.0f} tokens/s, {needed / elapsed / 1e12:.2f} of "
        f"{ceiling / 1e12:.2f} Tflop/s; first optimizer step {step:.2f} s{used}",
        flush=True,
    )
    return [
        report(
            f"{name}, {kind}, model FLOPs utilization",
            needed / elapsed / ceiling,
            "of a matrix product",
            bar=BARS[kind],
        )
    ]
