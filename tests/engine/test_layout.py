"""Packed sequences attend to the same, side by side or one after the other."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hud.engine import tiles
from hud.engine.layout import BLOCK, Layout, SharedLayout, Unpadded, layout_of
from hud.engine.tiles import Tiles

HEADS, KV_HEADS, SIZE = 4, 2, 16


def ends(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def attended(layout, tokens):
    """What comes out, and the gradients of queries, keys and values, all of them random."""
    generator = torch.manual_seed(0)
    parts = [
        torch.randn(tokens, heads, SIZE, generator=generator).requires_grad_()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]
    found = layout.attend(*parts)
    weights = torch.randn(found.shape, generator=generator)
    return [found, *torch.autograd.grad((found * weights).sum(), parts)]


@settings(deadline=None, max_examples=30)
@given(
    alone=st.lists(st.integers(1, 2 * BLOCK + 5), min_size=1, max_size=4),
    continued=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 2 * BLOCK + 5)), max_size=4),
)
def test_one_after_the_other_they_attend_as_side_by_side(alone, continued):
    lengths = [*alone, *(length for _, length in continued)]
    prefixes = [*[-1] * len(alone), *(row % len(alone) for row, _ in continued)]
    places = ends(lengths)
    beside = SharedLayout(places, torch.tensor(prefixes)) if continued else Layout(places)
    apart = Unpadded(places.tolist(), prefixes if continued else None)
    for one, other in zip(
        attended(apart, sum(lengths)), attended(beside, sum(lengths)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    alone=st.lists(st.integers(1, 150), min_size=1, max_size=4),
    continued=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 150)), max_size=4),
    scores=st.sampled_from([1, 5_000, 1 << 18]),
)
def test_in_tiles_they_attend_as_side_by_side(alone, continued, scores, monkeypatch):
    monkeypatch.setattr(tiles, "SCORES", scores)
    lengths = [*alone, *(length for _, length in continued)]
    prefixes = [*[-1] * len(alone), *(row % len(alone) for row, _ in continued)]
    places = ends(lengths)
    beside = SharedLayout(places, torch.tensor(prefixes)) if continued else Layout(places)
    tiled = Tiles(places.tolist(), prefixes if continued else None)
    for one, other in zip(
        attended(tiled, sum(lengths)), attended(beside, sum(lengths)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_scores_far_apart_leave_no_hole():
    """The shares of tokens that no power of two reaches are 0, and those of the others sum up to 1."""
    q = torch.tensor([[[300.0] * SIZE]] * 3)
    k = torch.tensor([[[-300.0] * SIZE], [[300.0] * SIZE], [[299.0] * SIZE]])
    v = torch.tensor([[[1.0] * SIZE], [[2.0] * SIZE], [[4.0] * SIZE]])
    found = Tiles([0, 3], None).attend(q, k, v)
    assert found[:, 0].tolist() == [1.0, 2.0, 2.0]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_sequences_of_one_length_are_computed_at_once_and_unlike_ones_are_not_padded(threads):
    threads(2)
    fp32 = torch.float32
    shared = torch.tensor([-1, *[0] * 8])
    assert isinstance(layout_of(ends([40] * 8), None, fp32), Layout)
    assert isinstance(layout_of(ends([20, *[30] * 8]), shared, fp32), SharedLayout)
    assert isinstance(layout_of(ends([40, 500, 90, 200]), None, fp32), Unpadded)
    unlike = [170, *[40, 400, 200]]
    assert isinstance(layout_of(ends(unlike), torch.tensor([-1, 0, 0, 0]), fp32), Unpadded)


def test_one_thread_takes_tiles_in_fp32(threads):
    threads(1)
    assert isinstance(layout_of(ends([40] * 8), None, torch.float32), Tiles)
    assert isinstance(layout_of(ends([40] * 8), None, torch.float64), Layout)
