"""What is compiled for the CPU computes what its formula says."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from hud_kernels.cpu.kernels import gate, largest, normalize, power_of_two, weigh


@given(st.floats(-126, 0, width=32))
def test_a_power_of_two_is_right_to_the_rounding_of_fp32(exponent):
    assert power_of_two(np.float32(exponent)) == pytest.approx(2.0**exponent, rel=2e-7)


def test_what_is_below_the_smallest_normal_number_has_no_mass():
    assert power_of_two(np.float32(-127)) == 0
    assert power_of_two(np.float32(-np.inf)) == 0
    assert power_of_two(np.float32(np.nan)) == 0


@pytest.mark.slow
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=70))
def test_the_largest_of_some_numbers_is_found_whatever_their_signs(numbers):
    x = np.array(numbers, np.float32)
    assert largest(x) == x.max()


@pytest.mark.slow
@given(st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=70))
def test_shares_are_a_softmax_to_the_base_of_two(scores):
    x = np.array(scores, np.float32)
    expected = torch.softmax(torch.from_numpy(x).double() * np.log(2.0), dim=0)
    weigh(x, np.float32(1), len(x), len(x))
    np.testing.assert_allclose(x, expected.numpy(), rtol=1e-5, atol=1e-30)


def test_a_gate_is_silu_times_up_even_where_its_exponential_would_overflow():
    gates = torch.tensor([[-1e4, -89.0, -20.0, -1.0, 0.0, 1.0, 20.0, 89.0, 1e4]])
    ups = torch.randn(1, 9, generator=torch.manual_seed(0))
    out = torch.empty(1, 9)
    gate(torch.cat((gates, ups), dim=1).numpy(), out.numpy())
    torch.testing.assert_close(out, F.silu(gates) * ups, rtol=1e-6, atol=1e-30)


@pytest.mark.slow
def test_rows_are_divided_by_their_lengths():
    x = torch.randn(5, 33, generator=torch.manual_seed(0)) * torch.logspace(-6, 6, 5)[:, None]
    out = torch.empty_like(x)
    normalize(x.numpy(), 1e-6, out.numpy())
    torch.testing.assert_close(out, x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt())
