"""Tensors of Tinker's messages, dense or in compressed rows, as columns of numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hud.errors import UsageError
from hud.learning.datum_calls import packed
from hud_integrations.shared.protobuf import Value, as_bytes, fields, integers

FLOAT32, INT64, INT32 = 1, 2, 3
MOST_TARGETS = 128
"""Targets of one position."""
MOST_COLUMN_BYTES = 1 << 30
"""Largest size of all targets and weights of a request, once they are read: that of the largest body of dense int32."""


def read_column(body: bytes, what: str) -> tuple[bytes, int | None]:
    """Return a tensor as a column, int64 of tokens and float32 of anything else, and its second dimension, if it has two.

    Raises `UsageError` for another type or shape, and for damaged data.
    """
    parts: dict[int, Value] = {}
    shape: list[int] = []
    for number, value in fields(body):
        if number == 4:
            shape += integers(value)
        else:
            parts[number] = value
    if len(shape) > 2 or (len(shape) == 2 and not 1 <= shape[1] <= MOST_TARGETS):
        raise UsageError(
            f"{what} has shape {shape}; it takes (N,), or (N, K) with up to {MOST_TARGETS} targets for each position."
        )
    kind = parts.get(3, 0)
    dense = as_bytes(parts.get(1, b""))
    types = {FLOAT32: "<f4", INT64: "<i8", INT32: "<i4"}
    if kind not in types:
        raise UsageError(f"{what} is neither float32 nor int64.")
    try:
        if 2 in parts:
            values = _dense(as_bytes(parts[2]), shape, types[int(kind)], what)
        else:
            values = np.frombuffer(dense, types[int(kind)])
    except ValueError:
        raise UsageError(f"{what} ends in the middle of a number.") from None
    column = packed(values, np.int64 if what.startswith("target_tokens") else np.float32)
    return column, shape[1] if len(shape) == 2 else None


def cell_rows(
    starts: npt.NDArray[np.int64], places: npt.NDArray[np.int64], cells: int, shape: list[int]
) -> npt.NDArray[np.int64] | None:
    """Return the (cells,) row of each cell of a matrix in compressed rows; None for indices of no such matrix."""
    counts = np.diff(starts)
    # Rows are as many as there are starts of: a shape alone allocates nothing.
    rows_fit = len(shape) == 2 and 1 <= len(starts) == shape[0] + 1 and bool((counts >= 0).all())
    if not rows_fit or starts[0] != 0 or not starts[-1] == cells == len(places):
        return None
    if cells and not 0 <= places.min() <= places.max() < shape[1]:
        return None
    return np.repeat(np.arange(shape[0]), counts)


def _dense(body: bytes, shape: list[int], kind: str, what: str) -> np.ndarray:
    """Return the (N, K) values of a matrix in compressed rows, with zeros where it has none."""
    parts = dict(fields(body))
    values = np.frombuffer(as_bytes(parts.get(1, b"")), kind)
    starts, places = (np.frombuffer(as_bytes(parts.get(number, b"")), "<i8") for number in (2, 3))
    rows = cell_rows(starts, places, len(values), shape)
    if rows is None:
        raise UsageError(f"{what} is no sparse matrix of shape {shape}.")
    # Rows without a value take 8 bytes of the body, and up to 8 * MOST_TARGETS here.
    if shape[0] * shape[1] * np.dtype(np.int64).itemsize > MOST_COLUMN_BYTES:
        raise too_large(what)
    matrix = np.zeros(shape, kind)
    matrix[rows, places] = values
    return matrix.reshape(-1)


def too_large(what: str) -> UsageError:
    """Return the error for data that take too much memory once they are read."""
    return UsageError(
        f"{what} is larger than {MOST_COLUMN_BYTES >> 20:,} MiB once it is read; send fewer datums at a time."
    )
