"""Token data as compact binary columns, and each turn's prompt as what it adds to the turn before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def pack_ids(ids: Sequence[int]) -> bytes:
    """Return token ids as little-endian int32."""
    return np.asarray(ids, dtype="<i4").tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """Return the token ids of a column."""
    ids: list[int] = np.frombuffer(data, dtype="<i4").tolist()
    return ids


def pack_logprobs(logprobs: Sequence[float] | npt.NDArray[np.float32]) -> bytes:
    """Return logprobs as little-endian float32: what a sampler computes in."""
    return np.asarray(logprobs, dtype="<f4").tobytes()


def unpack_logprobs(data: bytes) -> list[float]:
    """Return the logprobs of a column."""
    logprobs: list[float] = np.frombuffer(data, dtype="<f4").tolist()
    return logprobs


def added_prompt(before: Sequence[int] | None, prompt: Sequence[int]) -> Sequence[int] | None:
    """Return what `prompt` adds to the ids `before` it; None where it does not begin with them."""
    if before is None or len(prompt) < len(before) or prompt[: len(before)] != before:
        return None
    return prompt[len(before) :]
