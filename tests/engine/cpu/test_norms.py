"""Norms and rotations with gradients written out: the plain formulas, and what autograd makes of them."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.engine.cpu.norms import Normed, NormedRotated, normed, normed_rotated
from hud.engine.decoder import RMSNorm, rotate

EPS = 1e-6


def drawn(*shape, seed=0, dtype=torch.float64, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).mul_(scale).requires_grad_()


def angles(tokens, size, dtype=torch.float64):
    turns = 50 * drawn(tokens, 1, size // 2, seed=9, dtype=dtype).detach()
    both = torch.cat((turns, turns), dim=-1)
    return both.cos(), both.sin()


def test_the_gradient_of_a_norm_is_that_of_small_differences():
    assert torch.autograd.gradcheck(Normed.apply, (drawn(5, 6), drawn(6, seed=1), 0.1))


def test_the_gradient_of_a_rotated_norm_is_that_of_small_differences():
    cos, sin = angles(3, 4)
    inputs = (drawn(3, 2, 4), drawn(4, seed=1), cos, sin, 0.1)
    assert torch.autograd.gradcheck(NormedRotated.apply, inputs)


@settings(max_examples=30, deadline=None)
@given(
    tokens=st.integers(1, 40),
    heads=st.integers(1, 5),
    half=st.integers(1, 40),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
)
def test_norms_and_rotations_are_to_the_bit_the_plain_ones(tokens, heads, half, scale):
    """So logprobs of a pass with gradients are those of one without."""
    norm = RMSNorm(2 * half, EPS)
    with torch.no_grad():
        norm.weight.copy_(drawn(2 * half, seed=1, dtype=torch.float32))
    x = drawn(tokens, heads, 2 * half, dtype=torch.float32, scale=scale)
    cos, sin = angles(tokens, 2 * half, torch.float32)
    with torch.no_grad():
        plain = norm(x), rotate(norm(x), cos, sin)
    found = normed(norm, x), normed_rotated(norm, x, cos, sin)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, plain, strict=True))
    # In fp32 gradients are sums in another order.
    upstream = drawn(tokens, heads, 2 * half, seed=2, dtype=torch.float32).detach()
    expected = torch.autograd.grad(
        rotate(F.rms_norm(x, (2 * half,), norm.weight, EPS), cos, sin), (x, norm.weight), upstream
    )
    given_back = torch.autograd.grad(found[1], (x, norm.weight), upstream)
    for mine, theirs in zip(given_back, expected, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("trained", ["x", "weight"])
def test_what_is_frozen_gets_no_gradient(trained):
    norm, x = RMSNorm(8, EPS), drawn(3, 2, 8, dtype=torch.float32)
    x.requires_grad_(trained == "x")
    norm.weight.requires_grad_(trained == "weight")
    cos, sin = angles(3, 8, torch.float32)
    (normed(norm, x) + normed_rotated(norm, x, cos, sin)).sum().backward()
    assert (x.grad is not None) == (trained == "x")
    assert (norm.weight.grad is not None) == (trained == "weight")


def test_other_types_are_computed_as_ever():
    norm, x = RMSNorm(8, EPS).to(torch.bfloat16), drawn(3, 8, dtype=torch.bfloat16)
    with torch.no_grad():
        plain = norm(x)
    found = norm(x)
    assert torch.equal(found, plain)
    assert "Normed" not in type(found.grad_fn).__name__
