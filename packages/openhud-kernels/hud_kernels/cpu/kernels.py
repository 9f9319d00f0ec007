"""The small operations of a decode step, compiled by numba for this machine's CPU.

torch computes each by many operations, which cost more to start than to compute, and reads keys and values as far as the longest
row of a batch. Here one call does each, reads only what a row has, and releases the interpreter's lock. All work on fp32 arrays in
C order, in one thread. Compiled code is cached next to this file, or in the user's cache folder: only the first process on a
machine waits some seconds for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])
Floats = np.ndarray[Any, np.dtype[np.float32]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]

f32, i32 = np.float32, np.int32
LOG2_E = f32(math.log2(math.e))
OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "fastmath": {"contract", "reassoc", "nsz", "arcp", "afn"},
}
"""Of compiled code: sums may be taken in any order; infinities and NaN keep their meaning."""
BLOCK = 64
"""Probabilities that are summed at once: the sums are looked through before the probabilities of one of them are."""


def compiled(function: Function) -> Function:
    """Return a function's compiled form, with `OPTIONS`.

    Cached code is compiled again when the function's file changes, and not when a file changes whose functions it calls: after
    a change of those, touch the files that import them.
    """
    try:
        return cast(Function, njit(function, cache=True, nogil=True, **OPTIONS))
    except RuntimeError:  # There is no folder to keep it in: each process compiles it.
        return cast(Function, njit(function, nogil=True, **OPTIONS))


def _as_float(_context: Any, _bits: Any) -> Any:
    def code(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), code


def _as_bits(_context: Any, _number: Any) -> Any:
    def code(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.int32(types.float32), code


float_of: Any = intrinsic(_as_float)
"""Returns the fp32 number that has these 32 bits."""
bits_of: Any = intrinsic(_as_bits)
"""Returns the 32 bits of an fp32 number."""


@compiled
def largest(x: Floats) -> Any:
    """Return the largest of some numbers (N,); a NaN among them may be it.

    As integers in the same order, whose maximum has vector instructions here, as that of floats has not.
    """
    most = i32(-0x80000000)
    for place in range(len(x)):
        bits = bits_of(x[place])
        most = max(most, bits ^ ((bits >> i32(31)) & i32(0x7FFFFFFF)))
    return float_of(most ^ ((most >> i32(31)) & i32(0x7FFFFFFF)))


@compiled
def power_of_two(x: Any) -> Any:
    """Return 2 to the x, x ≤ 0, within 2e-7 of it; 0 below the smallest normal number.

    The whole part of x is the exponent of the result; the rest, within a half of 0, goes into the Taylor series. Written in
    what has vector instructions, as the library's function has none here.
    """
    nearest = np.floor(x + f32(0.5))
    rest = x - nearest
    series = f32(1.5252733804059841e-5)
    series = series * rest + f32(1.5403530393381609e-4)
    series = series * rest + f32(1.3333558146428443e-3)
    series = series * rest + f32(9.6181291076284772e-3)
    series = series * rest + f32(5.5504108664821580e-2)
    series = series * rest + f32(2.4022650695910071e-1)
    series = series * rest + f32(6.9314718055994531e-1)
    series = series * rest + f32(1.0)
    exponent = i32(max(nearest, f32(-126))) + i32(127)
    return series * float_of(exponent << i32(23)) if x > f32(-126) else f32(0)


@compiled
def inverse_length(x: Floats, small: Any) -> Any:
    """Return 1 / √(|x|² + small) of some numbers (N,)."""
    square = f32(0)
    for place in range(len(x)):
        square += x[place] * x[place]
    return f32(1) / np.sqrt(square + f32(small))


@compiled
def normalize(x: Floats, small: float, out: Floats) -> None:
    """Write x / √(|x|² + small) of the rows of x (N, H) into `out` (N, H)."""
    for row in range(x.shape[0]):
        scale = inverse_length(x[row], small)
        for place in range(x.shape[1]):
            out[row, place] = x[row, place] * scale


@compiled
def gate(gate_up: Floats, out: Floats) -> None:
    """Write silu(g) u of rows (N, 2 M), g being their first half and u the second, into `out` (N, M)."""
    size = out.shape[1]
    for row in range(out.shape[0]):
        gates, ups, into = gate_up[row, :size], gate_up[row, size:], out[row]
        for place in range(size):
            g = gates[place]
            # e to the -|g| cannot overflow; of a negative g it is the sigmoid's other form.
            low = power_of_two(-abs(g) * LOG2_E)
            into[place] = ups[place] * g * (f32(1) if g >= 0 else low) / (f32(1) + low)


@compiled
def draw_rows(
    logits: Floats,
    size: int,
    temperatures: Floats,
    uniforms: Doubles,
    ids: Integers,
    logprobs: Doubles,
) -> None:
    """Draw an index for each row of logits (N, V), below `size`: the one at which the running sum of exp(logits / temperature)
    passes the row's uniform number in [0, 1) of all of it. At temperature 0 the likeliest, with the logprob of temperature 1.

    Sums are in fp64, as in fp32 a vocabulary's tail is lost in their rounding. What has no mass is never drawn.
    """
    blocks = (size + BLOCK - 1) // BLOCK
    mass, sums = np.empty(size, f32), np.empty(blocks)
    for row in range(logits.shape[0]):
        own, greedy = logits[row, :size], temperatures[row] == 0
        scale = f32(1) if greedy else f32(1) / temperatures[row]
        highest = largest(own)
        for place in range(size):
            mass[place] = power_of_two((own[place] - highest) * scale * LOG2_E)
        total = 0.0
        for block in range(blocks):
            sums[block] = _sum(mass[block * BLOCK : (block + 1) * BLOCK])
            total += sums[block]
        chosen = 0
        if greedy:
            while chosen < size - 1 and own[chosen] != highest:
                chosen += 1
        else:
            chosen = _where(mass, sums, uniforms[row] * total)
        ids[row] = chosen
        logprobs[row] = np.float64((own[chosen] - highest) * scale) - np.log(total)


@compiled
def _sum(numbers: Any) -> Any:
    total = 0.0
    for place in range(len(numbers)):
        total += np.float64(numbers[place])
    return total


@compiled
def _where(mass: Any, sums: Any, wanted: Any) -> Any:
    """Return the first place at which the running sum of `mass` passes what is wanted; `sums` are those of its blocks.

    Rounding may leave the sum short of it, that of all blocks as that of one: then it is the last place with mass.
    """
    total, running, block = 0.0, 0.0, 0
    for number in range(len(sums)):
        if sums[number] > 0:
            block, running = number, total
            total += sums[number]
            if total > wanted:
                break
    chosen = block * BLOCK
    for place in range(block * BLOCK, min((block + 1) * BLOCK, len(mass))):
        if mass[place] > 0:
            running, chosen = running + np.float64(mass[place]), place
            if running > wanted:
                break
    return chosen


@compiled
def place(
    projected: Floats,
    scale: Floats,
    small: float,
    cos: Floats,
    sin: Floats,
    queries: Floats,
    keys: Floats,
    values: Floats,
) -> None:
    """Take N tokens' projections (N, (H + 2 K) D) apart: into queries (N, H, D), and keys and values (N, K, D).

    Queries and keys are normalized and scaled by `scale` (H + K, D), unless `small` is below 0, and turned by the angles'
    `cos` and `sin` (N, D / 2).
    """
    heads, kv_heads, size = queries.shape[1], keys.shape[1], queries.shape[2]
    for row in range(queries.shape[0]):
        parts = projected[row].reshape(heads + 2 * kv_heads, size)
        for head in range(heads):
            turn(parts[head], scale[head], small, cos[row], sin[row], queries[row, head])
        for head in range(kv_heads):
            own = heads + head
            turn(parts[own], scale[own], small, cos[row], sin[row], keys[row, head])
            for number in range(size):
                values[row, head, number] = parts[own + kv_heads, number]


@compiled
def turn(x: Any, scale: Any, small: Any, cos: Any, sin: Any, out: Any) -> None:
    """Write a head x (D,), turned, into `out` (D,): first normalized and scaled, unless `small` is below 0."""
    half = len(x) // 2
    factor = inverse_length(x, small) if small >= 0 else f32(1)
    for place in range(half):
        a, b = x[place] * factor, x[place + half] * factor
        if small >= 0:
            a, b = a * scale[place], b * scale[place + half]
        out[place] = a * cos[place] - b * sin[place]
        out[place + half] = b * cos[place] + a * sin[place]


@compiled
def weigh(scores: Any, scale: Any, count: Any, shown: Any) -> Any:
    """Replace the first `count` scores (N,) by their softmax, and the others up to `shown` by 0; return log2 Σ e^score.

    `scale`, by which scores are multiplied first, contains log2 e.
    """
    most, total = largest(scores[:count]) * scale, f32(0)
    for place in range(count):
        mass = power_of_two(scores[place] * scale - most)
        scores[place] = mass
        total += mass
    share = f32(1) / total
    for place in range(count):
        scores[place] *= share
    for place in range(count, shown):
        scores[place] = f32(0)
    return most + np.log2(total)
