"""Token data as compact binary columns."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from hud.trace.steps import Sample


def pack_ids(ids: Sequence[int]) -> bytes:
    """Return token ids as little-endian int32."""
    return np.asarray(ids, dtype="<i4").tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """Return the token ids of a column."""
    ids: list[int] = np.frombuffer(data, dtype="<i4").tolist()
    return ids


def pack_logprobs(logprobs: Sequence[float] | npt.NDArray[np.float32]) -> bytes:
    """Return logprobs as little-endian float32, the sampler's dtype."""
    return np.asarray(logprobs, dtype="<f4").tobytes()


def unpack_logprobs(data: bytes) -> list[float]:
    """Return the logprobs of a column."""
    logprobs: list[float] = np.frombuffer(data, dtype="<f4").tolist()
    return logprobs


def samples_checksum(samples: Iterable[Sample]) -> int:
    """Return the CRC-32 of the token-id and logprob columns of some samples, in order, and of their pictures."""
    checksum = 0
    for sample in samples:
        for column in (
            pack_ids(sample.prompt_token_ids),
            pack_ids(sample.output_token_ids),
            pack_logprobs(sample.output_logprobs),
        ):
            checksum = zlib.crc32(column, checksum)
        for picture in sample.pictures:
            checksum = zlib.crc32(f"{picture.start} {picture.pixels}".encode(), checksum)
    return checksum
