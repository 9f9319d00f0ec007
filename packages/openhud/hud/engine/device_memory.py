"""A GPU's out-of-memory errors as one sentence that names the options that need less."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hud.errors import DeviceMemoryError

# The name of every supported release; since torch 2.5 the same class as `torch.OutOfMemoryError`.
OutOfMemory = torch.cuda.OutOfMemoryError
_TRIED = re.compile(r"Tried to allocate ([\d.]+ \w+)")
SHORTER = "shorter runs (--max-tokens, --max-turns)"
TRAINING = (
    "the model's training options (--lora-rank, --optimizer-states 8bit, --offload-optimizer)"
)


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
