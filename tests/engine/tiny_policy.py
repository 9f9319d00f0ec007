"""A tiny random policy for tests, made once."""

import functools
from pathlib import Path

import numpy as np
from tests.lasting_folders import lasting_folder

from hud.engine.policy import Policy
from hud.engine.sample.options import SamplerOptions
from hud.engine.tiny_model import create_tiny
from hud.learning.datums import Datum
from hud.trace import ToolSpec

TOOLS = [
    ToolSpec(
        name="look",
        description="Look.",
        parameters={"type": "object", "properties": {"at": {"type": "integer"}}},
    )
]
TEXTS = [
    f'look at item {n}: {{"name": "look", "arguments": {{"at": {n}}}}} the answer is {n} apples'
    for n in range(200)
]


@functools.cache
def tiny_folder() -> Path:
    folder = lasting_folder("tiny-", "-m")
    create_tiny(folder, TEXTS, vocab_size=400, hidden=32, layers=2, max_context=512)
    return folder


def tiny_policy(**options: int) -> Policy:
    """A policy of `tiny_folder`, with options of its sampler."""
    return Policy.load(tiny_folder(), sampling=SamplerOptions(**options))


def lesson(ids: list[int], sampled: int) -> Datum:
    """What `cross_entropy` learns the last tokens of `ids` from."""
    mask = np.zeros(len(ids), dtype=np.float32)
    mask[-sampled:] = 1
    nothing = np.zeros_like(mask)
    return Datum(np.array(ids), mask, nothing, nothing, mask, np.ones_like(mask))
