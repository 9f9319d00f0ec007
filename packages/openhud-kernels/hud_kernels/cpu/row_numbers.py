"""Numbers of rows in compiled code, which are fp32, or bfloat16 as the integers of its 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload

from hud_kernels.cpu.kernels import bits_of, compiled, f32, float_of, i32

KINDS = {torch.float32: types.float32, torch.bfloat16: types.int16}
"""Types of the elements of rows in compiled code, by dtype."""


@compiled
def half_bits(x: Any) -> Any:
    """Return the 16 bits of bfloat16 of an fp32 number, rounded to the nearest, ties to even. NaN stays NaN."""
    bits = bits_of(f32(x))
    return np.int16(i32(bits + i32(0x7FFF) + ((bits >> i32(16)) & i32(1))) >> i32(16))


def number(x: Any) -> Any:
    """Return an element of a row in fp32."""
    raise NotImplementedError("compiled code only")


def put(row: Any, place: Any, x: Any) -> None:
    """Write an fp32 number into a row."""
    raise NotImplementedError("compiled code only")


def rounded(x: Any, row: Any) -> Any:
    """Return an fp32 number, rounded to the type of a row's elements."""
    raise NotImplementedError("compiled code only")


@overload(number)
def _number(x: Any) -> Any:
    def widen(x: Any) -> Any:
        return float_of(i32(x) << i32(16))

    def keep(x: Any) -> Any:
        return x

    return widen if x == types.int16 else keep


@overload(put)
def _put(row: Any, place: Any, x: Any) -> Any:  # noqa: ARG001
    def write(row: Any, place: Any, x: Any) -> None:
        row[place] = x

    def write_half(row: Any, place: Any, x: Any) -> None:
        row[place] = half_bits(x)

    return write_half if row.dtype == types.int16 else write


@overload(rounded)
def _rounded(x: Any, row: Any) -> Any:  # noqa: ARG001
    def round_half(x: Any, row: Any) -> Any:  # noqa: ARG001
        return float_of(i32(half_bits(x)) << i32(16))

    def keep(x: Any, row: Any) -> Any:  # noqa: ARG001
        return x

    return round_half if row.dtype == types.int16 else keep
