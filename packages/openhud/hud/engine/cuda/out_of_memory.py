"""A GPU's out-of-memory errors as one sentence that names the options that need less."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from hud.errors import DeviceMemoryError

if TYPE_CHECKING:
    from hud.engine.learn.options import TrainerOptions

# The name of every supported release; since torch 2.5 the same class as `torch.OutOfMemoryError`.
OutOfMemory = torch.cuda.OutOfMemoryError
_TRIED = re.compile(r"Tried to allocate ([\d.]+ \w+)")
SHORTER = "shorter runs (--max-tokens, --max-turns)"
TRAINING = (
    "the model's training options (--lora-rank, --optimizer-states 8bit, --offload-optimizer)"
)


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


def sentence(error: BaseException, work: str, advice: str) -> str:
    """Return the sentence of an out-of-memory error: the work, the size of the failed allocation, and the advice."""
    tried = _TRIED.search(str(error))
    size = f" ({tried[1]} more)" if tried else ""
    return f"The GPU has no memory left for {work}{size}. {advice} hud plan MODEL --gpu NAME shows what each part takes."


@contextmanager
def within_memory(work: str, advice: str) -> Iterator[None]:
    """Raise `DeviceMemoryError` where the block runs out of a GPU's memory."""
    try:
        yield
    except OutOfMemory as error:
        raise DeviceMemoryError(sentence(error, work, advice), everywhere=True) from error


def _either(options: list[str]) -> str:
    return " or ".join([", ".join(options[:-1]), options[-1]] if options[1:] else options)
