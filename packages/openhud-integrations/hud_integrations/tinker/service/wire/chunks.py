"""Chunks of an input: token ids, and images as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ImageChunk:
    """An image."""

    file: bytes
    expected_tokens: int | None = None
    """Number of its tokens according to the client; None: not stated."""


InputChunk = Sequence[int] | ImageChunk
"""Token ids, or an image."""
