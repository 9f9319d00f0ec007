"""Chunks of an input: token ids, and images as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class ImageChunk:
    """An image."""

    file: bytes
    expected_tokens: int | None = None
    """Number of its tokens according to the client; None: not stated."""


InputChunk = Sequence[int] | NDArray[np.int64] | ImageChunk
"""Token ids, or an image."""
