"""The gradients of a layer's small operations, and the rotation of heads, compiled for rows of fp32 or bfloat16 (`layer_kernels`).

All are work of a team (`team`): their first number is the count of claims. Sums are in fp32, and rounded once.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from hud_kernels.cpu.kernels import LOG2_E, compiled, f32, inverse_length, power_of_two
from hud_kernels.cpu.row_numbers import KINDS, number, put, rounded
from hud_kernels.cpu.team import Work, at, at_floats, carray, claim, number_at, work

ROWS = 16
"""Rows of a unit."""


def norm_gradient(call: Any) -> None:
    """Write the gradient of x (N, H), g (N, H) being that of its norm; with `summed` (units, H) fp32, also that of the weight (H,).

    With s = 1 / √(mean x² + ε):  dx = s w g - s³ x Σ w g x / H,  dw = Σ s g x, here over the rows of each unit.
    Numbers: out, g, x, weight, epsilon (1,) in fp32, summed or 0, N, H.
    """
    rows, size = number_at(call, 7), number_at(call, 8)
    out, g = carray(at(call, 1), (rows, size)), carray(at(call, 2), (rows, size))
    x, weight = carray(at(call, 3), (rows, size)), carray(at(call, 4), size)
    epsilon = carray(at_floats(call, 5), 1)[0]
    trained = number_at(call, 6) != 0
    units = (rows + ROWS - 1) // ROWS
    summed = carray(at_floats(call, 6), (units, size))
    wide = np.empty(size, np.float32)
    while True:
        unit = claim(call)
        if unit >= units:
            break
        if trained:
            summed[unit] = f32(0)
        for row in range(unit * ROWS, min((unit + 1) * ROWS, rows)):
            factor = norm_gradient_row(out[row], g[row], x[row], weight, epsilon, wide)
            if trained:
                for place in range(size):
                    summed[unit, place] += number(g[row, place]) * wide[place] * factor


def gate_gradient(call: Any) -> None:
    """Write the gradients of g and u (N, M), that of silu(g) u being `upstream`. Numbers: to_g, to_u, g, u, upstream, N, M."""
    rows, size = number_at(call, 6), number_at(call, 7)
    to_gates, to_ups = carray(at(call, 1), (rows, size)), carray(at(call, 2), (rows, size))
    gates, ups = carray(at(call, 3), (rows, size)), carray(at(call, 4), (rows, size))
    upstream = carray(at(call, 5), (rows, size))
    while True:
        first = claim(call) * ROWS
        if first >= rows:
            break
        for row in range(first, min(first + ROWS, rows)):
            gate_gradient_row(gates[row], ups[row], upstream[row], to_gates[row], to_ups[row])


def rotate(call: Any) -> None:
    """Write heads x (N, H, D), turned by the angles of `cos` and `sin` (N, D), into `out`; `back` 1 turns them back.

    Numbers: out, x, cos, sin, N, H, D, back.
    """
    rows, heads, size = number_at(call, 5), number_at(call, 6), number_at(call, 7)
    out, x = (
        carray(at(call, 1), (rows, heads, size)),
        carray(at(call, 2), (rows, heads, size)),
    )
    cos, sin = carray(at(call, 3), (rows, size)), carray(at(call, 4), (rows, size))
    sign = f32(-1) if number_at(call, 8) else f32(1)
    while True:
        first = claim(call) * ROWS
        if first >= rows:
            break
        for row in range(first, min(first + ROWS, rows)):
            for head in range(heads):
                rotate_row(x[row, head], cos[row], sin[row], sign, out[row, head])


class RowGradients(NamedTuple):
    """The work of rows of one type; see the functions of these names."""

    norm_gradient: Work
    gate_gradient: Work
    rotate: Work


@cache
def gradients_for(dtype: torch.dtype) -> RowGradients:
    """Return the kernels of a dtype of `KINDS`."""
    functions = norm_gradient, gate_gradient, rotate
    return RowGradients(*(work(function, KINDS[dtype]) for function in functions))


@compiled
def norm_gradient_row(out: Any, g: Any, x: Any, weight: Any, epsilon: Any, wide: Any) -> Any:
    """Compute one row of `norm_gradient`; leaves x in `wide` (H,), and returns s."""
    size = len(x)
    along = f32(0)
    for place in range(size):
        wide[place] = number(x[place])
        along += number(g[place]) * number(weight[place]) * wide[place]
    factor = inverse_length(wide, f32(size) * epsilon) * np.sqrt(f32(size))
    back = along * factor * factor * factor / f32(size)
    for place in range(size):
        pulled = number(g[place]) * number(weight[place]) * factor
        put(out, place, pulled - wide[place] * back)
    return factor


@compiled
def gate_gradient_row(gates: Any, ups: Any, upstream: Any, to_gates: Any, to_ups: Any) -> None:
    """Compute one row of `gate_gradient`."""
    for place in range(len(gates)):
        z, pulled = number(gates[place]), number(upstream[place])
        low = power_of_two(-abs(z) * LOG2_E)
        sigmoid = (f32(1) if z >= 0 else low) / (f32(1) + low)
        silu = z * sigmoid
        put(to_ups, place, pulled * silu)
        slope = sigmoid + silu * (f32(1) - sigmoid)
        put(to_gates, place, pulled * number(ups[place]) * slope)


@compiled
def rotate_row(x: Any, cos: Any, sin: Any, sign: Any, out: Any) -> None:
    """Turn one head x (D,), forward by a `sign` of 1."""
    half = len(x) // 2
    for place in range(half):
        a, b = number(x[place]), number(x[place + half])
        c, s = number(cos[place]), number(sin[place]) * sign
        put(out, place, rounded(a * c, out) - rounded(b * s, out))
        put(out, place + half, rounded(b * c, out) + rounded(a * s, out))
