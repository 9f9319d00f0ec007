"""Products of small matrices are those of torch, wherever the matrices lie."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hud_kernels.cpu.matmul_kernels import COLUMNS, add_product, multiply


def random(*shape):
    return torch.randn(*shape, generator=torch.manual_seed(sum(shape)))


@pytest.mark.slow
@given(
    rows=st.integers(0, 14),
    depth=st.integers(0, 40),
    columns=st.integers(1, 11).map(lambda count: count * COLUMNS),
    turned=st.booleans(),
    added=st.booleans(),
)
def test_a_product_is_written_or_added_between_what_lies_around_it(
    rows, depth, columns, turned, added
):
    a = random(depth, rows).T if turned else random(rows, depth)
    around_b, around_c = random(depth, columns + 5), random(rows + 2, columns + 7)
    b, c = around_b[:, 3 : columns + 3], around_c[1 : rows + 1, 4 : columns + 4]
    wanted = around_c.clone()
    wanted[1 : rows + 1, 4 : columns + 4] = a @ b + (c if added else 0)
    (add_product if added else multiply)(a.numpy(), b.numpy(), c.numpy())
    torch.testing.assert_close(around_c, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@given(rows=st.integers(1, 14), row=st.integers(0, 13))
def test_a_row_of_a_product_is_the_same_whatever_stands_beside_it(rows, row):
    row %= rows
    a, b = random(rows, 70), random(70, 80)
    together, alone = torch.empty(rows, 80), torch.empty(1, 80)
    multiply(a.numpy(), b.numpy(), together.numpy())
    multiply(a[row : row + 1].numpy(), b.numpy(), alone.numpy())
    assert torch.equal(together[row], alone[0])
