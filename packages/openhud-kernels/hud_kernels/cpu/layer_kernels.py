"""The small operations of a large decoder's layers, compiled: norms, gates and sampling.

torch computes each by several operations, each of which reads and writes all rows, in memory that the system clears first.
Rows are fp32, or the 16 bits of bfloat16 as integers. Every intermediate result is rounded where the reference decoder
rounds it.

All are work of a team (`team`): their first number is the count of claims.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from hud_kernels.cpu.kernels import (
    LOG2_E,
    compiled,
    draw_rows,
    f32,
    inverse_length,
    power_of_two,
)
from hud_kernels.cpu.row_numbers import KINDS, number, put, rounded
from hud_kernels.cpu.team import (
    Work,
    at,
    at_doubles,
    at_floats,
    at_integers,
    carray,
    claim,
    number_at,
    work,
)

ROWS = 8
"""Rows of a unit of norms and gates."""


def norm(call: Any) -> None:
    """Add `delta` (N, H), unless its address is 0, to x (N, H), and write the norm of x into `out` (N, H).

    Numbers: out, x, delta, weight (H,), epsilon (1,) of the mean square in fp32, N, H.
    """
    rows, size = number_at(call, 6), number_at(call, 7)
    out, x = carray(at(call, 1), (rows, size)), carray(at(call, 2), (rows, size))
    weight, epsilon = carray(at(call, 4), size), carray(at_floats(call, 5), 1)[0]
    added = number_at(call, 3) != 0
    delta = carray(at(call, 3 if added else 2), (rows, size))
    wide = np.empty(size, np.float32)
    while True:
        first = claim(call) * ROWS
        if first >= rows:
            break
        for row in range(first, min(first + ROWS, rows)):
            norm_row(x[row], delta[row], added, weight, epsilon, wide, out[row])


def gate(call: Any) -> None:
    """Write silu(g) u of g and u (N, M), whose rows lie `stride` elements apart, into `out` (N, M).

    Numbers: out, g, u, N, M, stride.
    """
    rows, size, stride = number_at(call, 4), number_at(call, 5), number_at(call, 6)
    out, gates = carray(at(call, 1), (rows, size)), carray(at(call, 2), (rows, stride))
    ups = carray(at(call, 3), (rows, stride))
    while True:
        first = claim(call) * ROWS
        if first >= rows:
            break
        for row in range(first, min(first + ROWS, rows)):
            gate_row(gates[row, :size], ups[row, :size], out[row])


def draw(call: Any) -> None:
    """Sample a token for each row of logits (N, V); see `draw_rows`. The logprob of a row with NaN is NaN.

    Numbers: logits, temperatures (N,) fp32, uniforms (N,) fp64, ids (N,), logprobs (N,) fp64, N, V.
    """
    rows, size = number_at(call, 6), number_at(call, 7)
    logits = carray(at(call, 1), (rows, size))
    temperatures, uniforms = carray(at_floats(call, 2), rows), carray(at_doubles(call, 3), rows)
    ids, logprobs = carray(at_integers(call, 4), rows), carray(at_doubles(call, 5), rows)
    wide = np.empty((1, size), np.float32)
    while True:
        row = claim(call)
        if row >= rows:
            break
        damaged = False
        for place in range(size):
            wide[0, place] = number(logits[row, place])
            damaged |= wide[0, place] != wide[0, place]
        here = slice(row, row + 1)
        draw_rows(wide, size, temperatures[here], uniforms[here], ids[here], logprobs[here])
        if damaged:
            logprobs[row] = np.nan


class LayerKernels(NamedTuple):
    """The work of rows of one type; see the functions of these names."""

    norm: Work
    gate: Work
    draw: Work


@cache
def kernels_for(dtype: torch.dtype) -> LayerKernels:
    """Return the kernels of a dtype of `KINDS`."""
    return LayerKernels(*(work(function, KINDS[dtype]) for function in (norm, gate, draw)))


@compiled
def norm_row(
    x: Any, delta: Any, added: Any, weight: Any, epsilon: Any, wide: Any, out: Any
) -> None:
    """Compute one row of `norm`; `wide` (H,) is room for it in fp32."""
    size = len(x)
    if added:
        for place in range(size):
            put(x, place, number(x[place]) + number(delta[place]))
    for place in range(size):
        wide[place] = number(x[place])
    # H times the mean square, and H times its epsilon: 1 / √ of both is 1 / √H of the factor.
    factor = inverse_length(wide, f32(size) * epsilon) * np.sqrt(f32(size))
    for place in range(size):
        put(out, place, number(weight[place]) * rounded(wide[place] * factor, out))


@compiled
def gate_row(gates: Any, ups: Any, out: Any) -> None:
    """Compute one row of `gate`."""
    for place in range(len(gates)):
        g = number(gates[place])
        # e to the -|g| cannot overflow; of a negative g it is the sigmoid's other form.
        low = power_of_two(-abs(g) * LOG2_E)
        swished = g * (f32(1) if g >= 0 else low) / (f32(1) + low)
        put(out, place, rounded(swished, out) * number(ups[place]))
