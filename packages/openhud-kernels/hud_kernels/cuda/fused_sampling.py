# mypy: disallow-untyped-decorators=False, disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Token sampling in one Triton kernel: temperature, top-k, top-p, the token and its logprob, without leaving the GPU.

The same inverse transform as `sample/token_sampling.py`, its reference: sums in fp64, logprobs in fp32, and the random
number of each row given, so that a request's tokens do not depend on its batch. One program computes one row and reads
its logits three times: for the maximum, for the sum, and for the token at which the running sum passes the number.
A row with a cut reads them 33 times more, to find the smallest logit that stays.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits that a program holds at a time."""


@dataclass(frozen=True)
class RowParams:
    """Sampling parameters of the rows of a batch, on the device."""

    temperatures: Tensor
    """(B,) fp32; 0 takes the likeliest token, with the logprob of temperature 1."""
    top_p: Tensor
    """(B,) fp32; 1: no cut."""
    top_k: Tensor
    """(B,) int32; 0: no cut."""


def sample_rows(
    logits: Tensor, params: RowParams, uniforms: Tensor, *, cut: bool
) -> tuple[Tensor, Tensor]:
    """Sample a token for each row of logits (B, V); return ids (B,) int64 and natural-log probabilities (B,) fp32.

    `uniforms` (B,) fp64 are in [0, 1). Without `cut`, top-p and top-k are not applied. Of equal logits at the edge of
    a cut, those with the lower ids stay.
    """
    rows, size = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    block = min(BLOCK, triton.next_power_of_2(size))
    _sample[(rows,)](
        logits,
        params.temperatures,
        params.top_p,
        params.top_k,
        uniforms,
        ids,
        logprobs,
        size,
        logits.stride(0),
        BLOCK=block,
        CUT=cut,
        num_warps=8,
    )
    return ids, logprobs


@triton.jit
def _scaled(row, start, size, divisor, BLOCK: tl.constexpr):
    """Return a block of a row's logits (BLOCK,) fp32, divided by the temperature; minus infinity past the end."""
    place = start + tl.arange(0, BLOCK)
    block = tl.load(row + place, mask=place < size, other=float("-inf"))
    return block.to(tl.float32) / divisor


@triton.jit
def _ordered(x):
    """Return int32 that are in the order of the floats x."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _above(row, size, divisor, highest, edge, BLOCK: tl.constexpr):
    """Return how many logits are above `edge` (in the order of `_ordered`), and their mass."""
    count = tl.full((), 0, tl.int32)
    mass = tl.full((), 0.0, tl.float64)
    for start in range(0, size, BLOCK):
        x = _scaled(row, start, size, divisor, BLOCK)
        above = _ordered(x).to(tl.int64) > edge
        count += tl.sum(above.to(tl.int32), 0)
        mass += tl.sum(tl.where(above, tl.exp(x - highest), 0.0).to(tl.float64), 0)
    return count, mass


@triton.jit
def _mass(
    row, start, size, divisor, highest, edge, room, seen, BLOCK: tl.constexpr, CUT: tl.constexpr
):
    """Return the weights (BLOCK,) fp64 of a block, and how many logits at the edge have been seen after it.

    Logits above the edge stay, and the first `room` at it.
    """
    x = _scaled(row, start, size, divisor, BLOCK)
    weights = tl.exp(x - highest).to(tl.float64)
    if CUT:
        key = _ordered(x).to(tl.int64)
        tied = (key == edge).to(tl.int32)
        order = seen + tl.cumsum(tied, 0) - tied
        stays = (key > edge) | ((tied > 0) & (order < room))
        weights = tl.where(stays, weights, 0.0)
        seen += tl.sum(tied, 0)
    return weights, seen


@triton.jit
def _sample(
    logits,
    temperatures,
    top_p,
    top_k,
    uniforms,
    ids,
    logprobs,
    size,
    stride,
    BLOCK: tl.constexpr,
    CUT: tl.constexpr,
):
    """Sample one row."""
    number = tl.program_id(0)
    row = logits + number.to(tl.int64) * stride
    place = tl.arange(0, BLOCK)
    temperature = tl.load(temperatures + number)
    divisor = tl.where(temperature == 0.0, 1.0, temperature)
    highest = tl.full((), float("-inf"), tl.float32)
    likeliest = tl.full((), 0, tl.int32)
    for start in range(0, size, BLOCK):
        x = _scaled(row, start, size, divisor, BLOCK)
        peak = tl.max(x, 0)
        likeliest = tl.where(peak > highest, start + tl.argmax(x, 0), likeliest).to(tl.int32)
        highest = tl.maximum(highest, peak)

    # Below every key: nothing is cut.
    edge = tl.full((), -2147483649, tl.int64)
    room = tl.full((), 0, tl.int32)
    if CUT:
        share = tl.load(top_p + number)
        most = tl.load(top_k + number)
        most = tl.where(most > 0, most, size)
        if (share < 1.0) | (most < size):
            _, everything = _above(row, size, divisor, highest, edge, BLOCK)
            limit = tl.where(share < 1.0, share, float("inf")).to(tl.float64) * everything
            # The largest key above which there are too many tokens, or too much mass: the next one is the edge.
            for bit in range(32):
                step = tl.full((), 2147483648, tl.int64) >> bit
                count, mass = _above(row, size, divisor, highest, edge + step, BLOCK)
                enough = (count >= most) | (mass >= limit)
                edge = tl.where(enough, edge + step, edge)
            edge += 1
            count, mass = _above(row, size, divisor, highest, edge, BLOCK)
            # Of those at the edge as many stay as begin within both limits; the likeliest token always does.
            bits = tl.where(edge < 0, edge ^ 0x7FFFFFFF, edge).to(tl.int32)
            edge_mass = tl.exp(bits.to(tl.float32, bitcast=True) - highest).to(tl.float64)
            by_mass = tl.ceil(((limit - mass) / tl.maximum(edge_mass, 1e-300)).to(tl.float32))
            by_mass = tl.minimum(by_mass, 1e9).to(tl.int32)
            room = tl.maximum(tl.minimum(most - count, by_mass), 1)

    total = tl.full((), 0.0, tl.float64)
    seen = tl.full((), 0, tl.int32)
    for start in range(0, size, BLOCK):
        weights, seen = _mass(row, start, size, divisor, highest, edge, room, seen, BLOCK, CUT)
        total += tl.sum(weights, 0)

    wanted = tl.load(uniforms + number) * total
    before = tl.full((), 0.0, tl.float64)
    seen = tl.full((), 0, tl.int32)
    token = tl.full((), -1, tl.int32)
    last = tl.full((), 0, tl.int32)
    for start in range(0, size, BLOCK):
        weights, seen = _mass(row, start, size, divisor, highest, edge, room, seen, BLOCK, CUT)
        mass = tl.sum(weights, 0)
        final = tl.max(tl.where(weights > 0.0, start + place, -1), 0).to(tl.int32)
        if (token < 0) & (before + mass > wanted):
            running = before + tl.cumsum(weights, 0)
            crossing = start + tl.sum((running <= wanted).to(tl.int32), 0)
            # The running sum may round to less than the sum; a token without mass is never returned.
            token = tl.minimum(crossing, final).to(tl.int32)
        last = tl.maximum(last, final)
        before += mass
    token = tl.where(token < 0, last, token)
    token = tl.where(temperature == 0.0, likeliest, token)
    chosen = tl.load(row + token).to(tl.float32) / divisor
    tl.store(ids + number, token.to(tl.int64))
    tl.store(logprobs + number, chosen - highest - tl.log(total.to(tl.float32)))
