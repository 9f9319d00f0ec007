"""Generated items: the questions, answers and metadata of the package, computed once for each process."""

from __future__ import annotations

import contextlib
import functools
import io
from typing import Any

import reasoning_gym

from hud.benchmarks.benchmark import Split
from hud_benchmarks.reasoning_gym.generators import ITEMS, SEEDS


@functools.lru_cache(maxsize=8)
def data_set(generator: str, split: Split) -> Any:
    """Return a generator's data set for a split; making one takes up to half a second."""
    return reasoning_gym.create_dataset(generator, seed=SEEDS[split], size=ITEMS[split])


@functools.lru_cache(maxsize=2048)
def item(generator: str, split: Split, index: int) -> dict[str, Any]:
    """Return `{"question", "answer", "metadata"}` of one item; the same for the same arguments, in any process."""
    # Some generators print as they work; standard output is the caller's.
    with contextlib.redirect_stdout(io.StringIO()):
        puzzle: dict[str, Any] = data_set(generator, split)[index]
    return puzzle
