"""Packed sequences attend to the same, side by side or one after the other, in torch's code or in compiled code."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.engine.models.attention import Packing, SharedPacking, chains, chosen
from hud_kernels.cpu.packed_attention import BLOCK, OneCore, Unpadded, packing_of

HEADS, KV_HEADS, SIZE = 4, 2, 16


def ends(lengths):
    return torch.tensor([0, *lengths]).cumsum(0)


def attended(packing, tokens, rows=None, dtype=torch.float32):
    """What comes out, and the gradients of queries, keys and values, all of them random."""
    generator = torch.manual_seed(0)
    parts = [
        torch.randn(tokens, heads, SIZE, generator=generator).to(dtype).requires_grad_()
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]
    found = packing.attend(*parts, rows)
    weights = torch.randn(found.shape, generator=generator).to(dtype)
    return [found, *torch.autograd.grad((found * weights).sum(), parts)]


@st.composite
def forests(draw, longest):
    """Lengths of rows, and the row that each continues, or -1, depth first."""
    lengths, prefixes, chain = [], [], []
    for row in range(draw(st.integers(1, 10))):
        kept = draw(st.integers(0, len(chain)))  # Of the chain of the row before.
        chain = chain[:kept]
        prefixes.append(chain[-1] if chain else -1)
        lengths.append(draw(st.integers(1, longest)))
        chain.append(row)
    return lengths, prefixes


def unshared(forest, parts, rows):
    """What `SharedPacking` does: the tokens of each row's whole chain as a sequence of its own."""
    lengths, prefixes = forest
    tokens = torch.arange(sum(lengths)).split(lengths)
    outputs = []
    for chain in chains(prefixes):
        seen = torch.cat([tokens[row] for row in chain])
        alone = Packing(ends([len(seen)])).attend(*(part[seen] for part in parts))
        outputs.append(alone[len(seen) - len(tokens[chain[-1]]) :])
    return chosen(rows, torch.cat(outputs))


def check_forest(forest, packings):
    """Compare packings of a forest with `unshared`."""

    class Alone:
        def attend(self, q, k, v, rows):
            return unshared(forest, (q, k, v), rows)

    tokens = sum(forest[0])
    some = torch.randint(0, tokens, (tokens // 2 + 1,), generator=torch.manual_seed(tokens))
    for rows in (None, some.sort().values):
        expected = attended(Alone(), tokens, rows)
        for packing in packings:
            for actual, wanted in zip(attended(packing, tokens, rows), expected, strict=True):
                torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(forests(2 * BLOCK + 5))
def test_rows_of_a_tree_attend_as_whole_sequences_do(forest):
    places, prefixes = ends(forest[0]), torch.tensor(forest[1])
    packings = [kind(places, prefixes) for kind in (SharedPacking, Unpadded, OneCore)]
    if max(forest[1]) < 0:
        packings += [Packing(places), Unpadded(places, None), OneCore(places, None)]
    check_forest(forest, packings)


def test_every_branch_of_a_deep_tree_sees_its_own_ancestors_alone():
    forest = [20, 5, 7, 3, 9, 1, 30], [-1, 0, 1, 1, 0, 4, -1]
    places, prefixes = ends(forest[0]), torch.tensor(forest[1])
    check_forest(forest, [kind(places, prefixes) for kind in (SharedPacking, Unpadded, OneCore)])


@pytest.mark.parametrize("window", [1, 6, 25])
def test_a_window_reaches_into_the_rows_that_a_row_continues(window):
    lengths, prefixes = [20, 5, 7, 9], [-1, 0, 1, 0]
    packing = SharedPacking(ends(lengths), torch.tensor(prefixes))
    generator = torch.manual_seed(1)
    parts = [torch.randn(41, heads, SIZE, generator=generator) for heads in (4, 2, 2)]
    actual = packing.attend(*parts, window=window)
    tokens = torch.arange(41).split(lengths)
    for chain in chains(prefixes):
        seen = torch.cat([tokens[row] for row in chain])
        alone = Packing(ends([len(seen)]))
        expected = alone.attend(*(part[seen] for part in parts), window=window)
        torch.testing.assert_close(actual[seen], expected, rtol=1e-4, atol=1e-5)


def test_sequences_of_one_length_are_computed_at_once_and_unlike_ones_are_not_padded():
    assert isinstance(packing_of(ends([40] * 8), None), Packing)
    star = torch.tensor([-1, *[0] * 8])
    assert isinstance(packing_of(ends([20, *[30] * 8]), star), SharedPacking)
    assert isinstance(packing_of(ends([40, 500, 90, 200]), None), Unpadded)
    assert isinstance(packing_of(ends([170, 40, 400, 200]), torch.tensor([-1, 0, 0, 0])), Unpadded)


def test_a_long_beginning_is_not_copied_for_each_of_many_short_sequences():
    assert isinstance(packing_of(ends([400, *[10] * 8]), torch.tensor([-1, *[0] * 8])), Unpadded)


@pytest.mark.parametrize("length", [12, 500])
def test_in_half_precision_short_and_long_sequences_have_the_gradient_of_fp32(length):
    forest = [length, length, 7, 3], [-1, 0, 0, 2]
    places, prefixes = ends(forest[0]), torch.tensor(forest[1])
    packing = packing_of(places, prefixes, half=True)
    assert isinstance(packing, Unpadded)
    exact = attended(packing, sum(forest[0]))
    for actual, wanted in zip(
        attended(packing, sum(forest[0]), dtype=torch.bfloat16), exact, strict=True
    ):
        assert actual.dtype == torch.bfloat16
        difference = (actual.float() - wanted).norm() / wanted.norm()
        assert difference < 0.02


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
