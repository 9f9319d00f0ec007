"""The options that reduce the memory of a model's training."""

from __future__ import annotations

from hud.engine.device_memory import SHORTER
from hud.engine.learn.options import TrainerOptions


def training_remedies(options: TrainerOptions, *, lora: bool) -> list[str]:
    """Return the options of a model that reduce the memory of its training and are not in use."""
    remedies = [] if options.recompute_layers else ["--recompute-layers"]
    if not lora:
        offload = options.optimizer.offload
        if options.optimizer.states != "8bit" and not offload:
            remedies.append("--optimizer-states 8bit")
        if not offload:
            remedies.append("--offload-optimizer")
        remedies.append("--lora-rank 16")
    return remedies


def training_advice(options: TrainerOptions, *, lora: bool) -> str:
    """Return what to lower, for a trainer with these options."""
    remedies = training_remedies(options, lora=lora)
    fork = (
        f"a fork of the model (hud models fork) with {_either(remedies)}, or " if remedies else ""
    )
    return f"Lower what it takes: {fork}{SHORTER}."


def _either(options: list[str]) -> str:
    return " or ".join([", ".join(options[:-1]), options[-1]] if options[1:] else options)
