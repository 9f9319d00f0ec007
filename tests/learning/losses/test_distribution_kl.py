"""KL over whole distributions: against an oracle in plain Python, its gradient against finite differences of the oracle."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hud.learning.losses.distribution_kl import distribution_kl, joined_logprobs


def probabilities(logits):
    total = sum(math.exp(logit) for logit in logits)
    return [math.exp(logit) / total for logit in logits]


def oracle(logits, reference_logits, likeliest):
    """Return the KL of two distributions whose tokens outside `likeliest` are one."""
    p, q = probabilities(logits), probabilities(reference_logits)
    groups = [[token] for token in likeliest]
    others = [token for token in range(len(p)) if token not in likeliest]
    total = 0.0
    for group in [*groups, others] if others else groups:
        own, other = sum(p[token] for token in group), sum(q[token] for token in group)
        total += own * (math.log(own) - math.log(other))
    return total


@st.composite
def pairs(draw):
    size = draw(st.integers(2, 6))
    number = st.floats(-4, 4, allow_nan=False)
    rows = draw(st.integers(1, 3))
    row = st.lists(number, min_size=size, max_size=size)
    return (
        [draw(row) for _ in range(rows)],
        [draw(row) for _ in range(rows)],
        draw(st.integers(1, size)),
    )


def likeliest_of(reference, top):
    return torch.tensor(reference, dtype=torch.float64).topk(top).indices


def computed(logits, reference, tokens):
    known = joined_logprobs(torch.tensor(reference, dtype=torch.float64), tokens)
    return distribution_kl(logits, tokens, known)


@given(pair=pairs())
@settings(max_examples=100, deadline=None)
def test_the_kl_and_its_gradient_equal_the_oracle(pair):
    rows, reference, top = pair
    tokens = likeliest_of(reference, top)
    logits = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    kl = computed(logits, reference, tokens)
    kl.sum().backward()
    step = 1e-5
    for number, (own, other) in enumerate(zip(rows, reference, strict=True)):
        listed = tokens[number].tolist()
        assert kl[number].item() == pytest.approx(oracle(own, other, listed), abs=1e-10)
        for place in range(len(own)):
            sides = []
            for sign in (1, -1):
                moved = list(own)
                moved[place] += sign * step
                sides.append(oracle(moved, other, listed))
            slope = (sides[0] - sides[1]) / (2 * step)
            assert logits.grad[number, place].item() == pytest.approx(slope, abs=1e-6)


@given(pair=pairs())
@settings(max_examples=50, deadline=None)
def test_joining_tokens_never_raises_the_kl(pair):
    rows, reference, top = pair
    logits = torch.tensor(rows, dtype=torch.float64)
    joined = computed(logits, reference, likeliest_of(reference, top))
    exact = computed(logits, reference, likeliest_of(reference, len(rows[0])))
    assert (joined <= exact + 1e-12).all()
    assert (joined >= -1e-12).all()
    assert computed(torch.tensor(reference).double(), reference, likeliest_of(reference, top)).abs().max() < 1e-12  # fmt: skip


def test_a_reference_with_more_tokens_is_compared_in_those_that_the_policy_has():
    """The policy's probability of the reference's token 3 is 0."""
    logits = torch.tensor([[0.3, -1.0, 0.5]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[0.1, 0.2, -0.5, 4.0]], dtype=torch.float64)
    tokens = torch.tensor([[3, 1]])
    kl = distribution_kl(logits, tokens, joined_logprobs(reference, tokens))
    kl.sum().backward()
    p, q = logits.detach().softmax(-1)[0], reference.softmax(-1)[0]
    expected = p[1] * (p[1] / q[1]).log() + (1 - p[1]) * ((1 - p[1]) / (q[0] + q[2])).log()
    assert kl.item() == pytest.approx(expected.item())
    assert logits.grad.isfinite().all()


def test_a_token_that_the_reference_cannot_sample_leaves_the_kl_finite():
    logits = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[0.0, -torch.inf, -torch.inf]], dtype=torch.float64)
    kl = distribution_kl(logits, torch.tensor([[0, 1]]), reference)
    kl.sum().backward()
    assert 50 < kl.item() < 100
    assert logits.grad[0, 0] < 0 < logits.grad[0, 1]
