"""Sizes of a benchmark's work: the full ones, or with `BENCH_SMALLEST=1` the smallest that still run every part.

At the smallest sizes a figure means nothing: it is neither recorded nor held against its bar. Tests start every script so.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

SMALLEST = os.environ.get("BENCH_SMALLEST", "") not in ("", "0")


def size(full: T, smallest: T) -> T:
    """Return the size for this run."""
    return smallest if SMALLEST else full
