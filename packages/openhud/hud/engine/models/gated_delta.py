"""The gated delta rule (arXiv 2412.06464) and the short convolution before it, in plain PyTorch.

A head's state S is a matrix (K, V). With the token's key k, value v, decay exp(g) and strength β:

    S ← exp(g) S,   S ← S + β k (v - kᵀ S)ᵀ,   output qᵀ S

`step` computes one token so. `chunked` computes many by chunks: within a chunk the updates are the solution of a triangular
system (the UT transform, arXiv 2406.06484), and the state passes from chunk to chunk.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hud.engine.models.state_packing import StatePacking

_EPS = 1e-6
"""Added to the square of a key's length before it is divided by that."""


def unit(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys (..., K) of length 1, the queries divided by √K, in at least float32."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k = (
        x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS) for x in (q.to(dtype), k.to(dtype))
    )
    return q * q.shape[-1] ** -0.5, k


def convolved(x: Tensor, weight: Tensor, packing: StatePacking, states: Tensor) -> Tensor:
    """Return the causal convolution (T, D) of packed tokens x (T, D), each channel with its own `weight` (D, memory + 1).

    `states` (S, memory, D): the inputs before each sequence that continues no other one.
    """
    inputs = torch.cat((x, states.flatten(0, 1))).index_select(0, packing.inputs)
    dtype = torch.promote_types(x.dtype, torch.float32)
    inputs, taps = inputs.to(dtype), weight.to(dtype).unbind(1)
    count = len(inputs) - len(taps) + 1
    total = inputs[:count] * taps[0]
    for place, tap in enumerate(taps[1:], 1):
        total = torch.addcmul(total, inputs[place : place + count], tap)
    return total.index_select(0, packing.outputs).to(x.dtype)


def convolution_states(x: Tensor, packing: StatePacking, states: Tensor) -> Tensor:
    """Return the last inputs (S, memory, D) of each sequence, as `states` of what follows it."""
    return torch.cat((x, states.flatten(0, 1)))[packing.tails]


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    packing: StatePacking,
    states: Tensor | None = None,
    *,
    final: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the outputs (T, heads, V) of packed tokens and, if `final`, the state (S, heads, K, V) after each sequence.

    q and k are (T, key_heads, K), as `unit` returns them; v (T, heads, V), g and beta (T, heads). `states`: those before each
    sequence that continues no other one; None: 0.
    """
    groups = v.shape[1] // k.shape[1]
    q, k, v = (packing.chunks(x.to(q.dtype)) for x in (q, k, v))
    g, beta = (packing.chunks(x.to(q.dtype)) * packing.real[:, None] for x in (g, beta))
    decay = g.cumsum(-1)
    later = torch.ones(packing.chunk, packing.chunk, dtype=torch.bool, device=q.device).triu(1)
    # exp(decay of i - decay of j) for j up to i; a later j would overflow.
    between = (decay[..., :, None] - decay[..., None, :]).masked_fill(later, -torch.inf).exp()
    system = _repeated(k @ k.mT, groups) * between * beta[..., None]
    within = _repeated(q @ k.mT, groups) * between
    q, k = _repeated(q, groups), _repeated(k, groups)
    grown = decay.exp()[..., None]
    right = torch.cat((v, k * grown), -1) * beta[..., None]
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    written, read = solved.split((v.shape[-1], k.shape[-1]), -1)
    q = q * grown
    k = (k * (decay[..., -1:] - decay).exp()[..., None]).mT
    remaining = grown[..., -1:, :]

    state = None if states is None else states.index_select(0, packing.roots)
    updates, carried, lasts = [], [], []
    for level in packing.levels:
        here = slice(level.start, level.end)
        update = written[here]
        if state is not None:
            before = level.before
            state = state[: len(update)] if before is None else state.index_select(0, before)
            update = update - read[here] @ state
            carried.append(q[here] @ state)
            state = torch.addcmul(k[here] @ update, state, remaining[here])
        else:
            carried.append(torch.zeros_like(update))
            state = k[here] @ update
        updates.append(update)
        if final:
            lasts.append(state.index_select(0, level.last))
    output = torch.cat(carried) + within @ torch.cat(updates)
    ends = torch.cat(lasts).index_select(0, packing.last_order) if final else None
    return packing.joined(output), ends


def step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, states: Tensor) -> Tensor:
    """Return the outputs (B, heads, V) of one token for each sequence, and bring `states` (B, heads, K, V) behind it, in place.

    q and k are (B, key_heads, K), as `unit` returns them; v (B, heads, V), g and beta (B, heads).
    """
    groups = v.shape[1] // k.shape[1]
    q, k = _repeated(q, groups).unsqueeze(-2), _repeated(k, groups).unsqueeze(-2)
    states.mul_(g.to(states.dtype).exp()[..., None, None])
    missed = v.to(states.dtype).unsqueeze(-2) - k @ states
    update = missed * beta.to(states.dtype)[..., None, None]
    flat = states.view(-1, *states.shape[-2:])
    flat.baddbmm_(k.mT.flatten(0, 1), update.flatten(0, 1))
    return (q @ states).squeeze(-2)


def decays(a: Tensor, log_rate: Tensor, bias: Tensor) -> Tensor:
    """Return g = -exp(log_rate) softplus(a + bias) (T, heads), in at least float32."""
    dtype = torch.promote_types(a.dtype, torch.float32)
    return -log_rate.to(dtype).exp() * F.softplus(a.to(dtype) + bias)


def _repeated(x: Tensor, groups: int) -> Tensor:
    """Return x with each head (dimension 1) `groups` times, in a row."""
    return x if groups == 1 else x.repeat_interleave(groups, 1)
