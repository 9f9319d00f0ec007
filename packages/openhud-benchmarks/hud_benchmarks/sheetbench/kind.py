"""`Kind`: a generator of exercises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal

from hud_benchmarks.sheetbench.grading.exercise import Exercise

Band = Literal["easy", "medium", "hard"]


@dataclass(frozen=True)
class Kind:
    """One kind of task. `make` draws an exercise; equal generators give equal exercises."""

    name: str
    band: Band
    held_out: int
    """Number of held-out tasks."""
    make: Callable[[Random], Exercise]
