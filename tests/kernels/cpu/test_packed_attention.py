"""Packed sequences attend to the same, side by side or one after the other, in torch's code or in compiled code."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.engine.models.attention import Packing, SharedPacking
from hud_kernels.cpu.packed_attention import BLOCK, OneCore, Unpadded, packing_of

HEADS, KV_HEADS, SIZE = 4, 2, 16


def ends(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def attended(packing, tokens, rows=None):
    """What comes out, and the gradients of queries, keys and values, all of them random."""
    generator = torch.manual_seed(0)
    parts = [
        torch.randn(tokens, heads, SIZE, generator=generator).requires_grad_()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]
    found = packing.attend(*parts, rows)
    weights = torch.randn(found.shape, generator=generator)
    return [found, *torch.autograd.grad((found * weights).sum(), parts)]


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(
    alone=st.lists(st.integers(1, 2 * BLOCK + 5), min_size=1, max_size=4),
    continued=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2 * BLOCK + 5)), max_size=4),
)
def test_however_they_are_laid_out_they_attend_to_the_same(alone, continued):
    lengths = [*alone, *(length for _, length in continued)]
    prefixes = [*[-1] * len(alone), *(row % len(alone) for row, _ in continued)]
    places = ends(lengths)
    beside = SharedPacking(places, torch.tensor(prefixes)) if continued else Packing(places)
    apart = Unpadded(places.tolist(), prefixes if continued else None)
    by_one_core = OneCore(places, torch.tensor(prefixes) if continued else None)
    tokens = sum(lengths)
    some = torch.randint(0, tokens, (tokens // 2 + 1,), generator=torch.manual_seed(tokens))
    for rows in (None, some.sort().values):
        wanted = attended(beside, tokens, rows)
        for packing in (apart, by_one_core):
            for one, other in zip(attended(packing, tokens, rows), wanted, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-5)


def test_sequences_of_one_length_are_computed_at_once_and_unlike_ones_are_not_padded():
    assert isinstance(packing_of(ends([40] * 8), None), Packing)
    assert isinstance(
        packing_of(ends([20, *[30] * 8]), torch.tensor([-1, *[0] * 8])), SharedPacking
    )
    assert isinstance(packing_of(ends([40, 500, 90, 200]), None), Unpadded)
    unlike = [170, *[40, 400, 200]]
    assert isinstance(packing_of(ends(unlike), torch.tensor([-1, 0, 0, 0])), Unpadded)


def test_no_tokens_attend_to_nothing():
    """As in a rank that has no sequences, and only keeps the others company."""
    packing = packing_of(ends([]), None, one_core_head=16)
    assert [one.numel() for one in attended(packing, 0, torch.empty(0, dtype=torch.long))] == [
        0
    ] * 4
    assert [one.numel() for one in attended(packing, 0)] == [0] * 4


def test_where_nobody_asks_nothing_is_computed():
    packing = OneCore(ends([3, 4]), None)
    nobody = torch.empty(0, dtype=torch.long)
    found, *gradients = attended(packing, 7, nobody)
    assert found.shape == (0, HEADS * SIZE)
    assert all(not one.any() for one in gradients)
