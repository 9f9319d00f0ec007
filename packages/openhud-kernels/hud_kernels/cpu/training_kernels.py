"""Gradients of what `kernels` computes between a layer's products, compiled in the same way.

Each takes again from its inputs what the forward pass could have kept: that costs less than to write and to read it.
"""

from __future__ import annotations

import numpy as np

from hud_kernels.cpu.kernels import LOG2_E, Floats, compiled, f32, inverse_length, power_of_two


@compiled
def scaled(x: Floats, scale: Floats, small: float, out: Floats) -> None:
    """Write w x / √(|x|² + small) of the rows of x (N, H), w being `scale` (H,), into `out` (N, H)."""
    for row in range(x.shape[0]):
        factor = inverse_length(x[row], small)
        for place in range(x.shape[1]):
            out[row, place] = x[row, place] * scale[place] * factor


@compiled
def scaled_gradient(
    g: Floats, x: Floats, scale: Floats, small: float, out: Floats, to_scale: Floats
) -> None:
    """Add to `out` (N, H) the gradient of x (N, H), g (N, H) being that of what `scaled` makes of it; likewise `to_scale`.

    With s = 1 / √(|x|² + small):  dx = s w g - s³ x Σ w g x,  dw = Σ s g x over the rows.
    """
    size = x.shape[1]
    for row in range(x.shape[0]):
        factor, along = inverse_length(x[row], small), f32(0)
        for place in range(size):
            along += g[row, place] * x[row, place] * scale[place]
        back = along * factor * factor * factor
        for place in range(size):
            pulled = g[row, place] * factor
            out[row, place] += pulled * scale[place] - x[row, place] * back
            to_scale[place] += pulled * x[row, place]


@compiled
def gate_gradient(gate_up: Floats, g: Floats, gated: Floats, out: Floats) -> None:
    """Write the gradient of gates and ups (N, 2 M) into `out`, g (N, M) being that of what `gate` makes of them.

    That itself is written into `gated` (N, M).
    """
    size = gated.shape[1]
    for row in range(gated.shape[0]):
        gates, ups, upstream, into = gate_up[row, :size], gate_up[row, size:], g[row], gated[row]
        to_gates, to_ups = out[row, :size], out[row, size:]
        for place in range(size):
            z = gates[place]
            low = power_of_two(-abs(z) * LOG2_E)
            sigmoid = (f32(1) if z >= 0 else low) / (f32(1) + low)
            silu = z * sigmoid
            into[place] = silu * ups[place]
            to_ups[place] = upstream[place] * silu
            to_gates[place] = upstream[place] * ups[place] * (sigmoid + silu * (f32(1) - sigmoid))


@compiled
def heads_gradient(
    projected: Floats,
    scale: Floats,
    small: float,
    cos: Floats,
    sin: Floats,
    queries: Floats,
    keys: Floats,
    values: Floats,
    out: Floats,
    to_scale: Floats,
) -> None:
    """Write the gradient of N tokens' projections into `out` (N, (H + 2 K) D), and add that of `scale` to `to_scale`.

    `queries` (N, H, D), `keys` and `values` (N, K, D) are gradients of what `HeadKernels.place` makes of them.
    """
    heads, kv_heads, size = queries.shape[1], keys.shape[1], queries.shape[2]
    half = size // 2
    back = np.empty(size, f32)
    for row in range(projected.shape[0]):
        parts = projected[row].reshape(heads + 2 * kv_heads, size)
        into = out[row].reshape(heads + 2 * kv_heads, size)
        for head in range(heads + kv_heads):
            g = queries[row, head] if head < heads else keys[row, head - heads]
            x, weight, to_x, to_weight = parts[head], scale[head], into[head], to_scale[head]
            # A rotation's gradient is the rotation back.
            for place in range(half):
                a, b = g[place], g[place + half]
                back[place] = a * cos[row, place] + b * sin[row, place]
                back[place + half] = b * cos[row, place] - a * sin[row, place]
            if small >= 0:
                factor, along = inverse_length(x, small), f32(0)
                for place in range(size):
                    along += back[place] * weight[place] * x[place]
                less = along * factor * factor * factor
                for place in range(size):
                    to_weight[place] += back[place] * x[place] * factor
                    to_x[place] = back[place] * weight[place] * factor - x[place] * less
            else:
                for place in range(size):
                    to_x[place] = back[place]
        for head in range(kv_heads):
            for place in range(size):
                into[heads + kv_heads + head, place] = values[row, head, place]
