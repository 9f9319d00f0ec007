"""What is drawn follows the distribution, however large or lopsided, and carries the logprob that it had."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hud.engine.sample.token_sampling import sample_tokens
from hud.errors import InfrastructureFault
from hud.trace import SamplingParams

PLAIN = SamplingParams(max_tokens=1)
UNCUT = SamplingParams(max_tokens=1, top_k=10**6)
"""Cuts nothing off, but is drawn the way that GPUs and cut distributions are."""
both_ways = pytest.mark.parametrize("params", [PLAIN, UNCUT], ids=["compiled", "by torch"])


def drawn(logits, uniforms, params=PLAIN):
    rows = torch.tensor(np.asarray(logits), dtype=torch.float32).expand(len(uniforms), -1)
    return sample_tokens(rows.clone(), [params] * len(uniforms), uniforms)


@pytest.mark.slow
@both_ways
@given(
    size=st.integers(1, 700),
    spread=st.sampled_from([0.0, 1.0, 8.0, 40.0]),
    seed=st.integers(0, 10**6),
    uniforms=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=6),
)
def test_a_number_falls_on_the_token_whose_share_of_the_running_sum_holds_it(
    params, size, spread, seed, uniforms
):
    logits = np.random.default_rng(seed).normal(0, spread, size).astype(np.float32)
    exact = np.exp(logits.astype(np.float64) - logits.max())
    running = np.concatenate(([0.0], np.cumsum(exact / exact.sum())))
    ids, logprobs = drawn(logits, uniforms, params)
    for token, logprob, number in zip(ids, logprobs, uniforms, strict=True):
        assert running[token] - 1e-6 <= number <= running[token + 1] + 1e-6
        expected = np.log(exact[token] / exact.sum())
        # Logits and logprobs are rounded, and the normalizer is a sum of `size` terms.
        near = 2**-22 * (np.abs(logits).max() + abs(expected) + size**0.5)
        assert logprob == pytest.approx(expected, abs=near)


@pytest.mark.slow
@both_ways
@given(
    size=st.integers(1, 400),
    allowed=st.integers(0, 10**6),
    uniforms=st.lists(
        st.one_of(st.just(0.0), st.just(1 - 2**-53), st.floats(0, 1, exclude_max=True)),
        min_size=1,
        max_size=6,
    ),
)
def test_what_has_no_probability_is_never_drawn(params, size, allowed, uniforms):
    logits = np.full(size, -np.inf, np.float32)
    some = np.random.default_rng(allowed).choice(size, max(1, size // 9), replace=False)
    logits[some] = np.random.default_rng(allowed + 1).normal(0, 3, len(some))
    ids, logprobs = drawn(logits, uniforms, params)
    assert set(ids) <= set(some.tolist())
    assert np.isfinite(logprobs).all()


@pytest.mark.slow
@both_ways
def test_the_tail_of_a_large_vocabulary_is_drawn_as_often_as_it_should_be(params):
    size = 200_000
    logits = np.zeros(size, np.float32)
    logits[0] = np.log(size)  # Half of all mass; the other half in 199,999 tokens.
    uniforms = (np.arange(256) + 0.5) / 256
    ids, _ = drawn(logits, uniforms.tolist(), params)
    assert np.mean(np.array(ids) == 0) == pytest.approx(0.5, abs=1e-3)
    tail = np.array([token for token in ids if token])
    assert np.quantile(tail / size, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=1e-2)


@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_p": 0.5}, {"top_k": 5, "top_p": 0.9}])
def test_a_cut_distribution_keeps_its_likeliest_tokens_and_sums_to_one(params):
    logits = np.linspace(0, 4, 300).astype(np.float32)
    uniforms = ((np.arange(2048) + 0.5) / 2048).tolist()
    ids, logprobs = drawn(logits, uniforms, SamplingParams(max_tokens=1, **params))
    kept = dict(zip(ids, logprobs, strict=True))
    # The likeliest stand last, and none between is missing.
    assert min(kept) == 300 - len(kept)
    assert np.exp(list(kept.values())).sum() == pytest.approx(1.0, abs=1e-4)
    if "top_k" in params:
        assert len(kept) <= params["top_k"]


def test_greedy_takes_the_likeliest_with_the_logprob_of_temperature_one():
    logits = np.array([0.0, 2.0, 1.0], np.float32)
    ids, logprobs = drawn(logits, [0.99], SamplingParams(max_tokens=1, temperature=0.0))
    assert ids == [1]
    assert logprobs[0] == pytest.approx(np.log(np.exp(2) / np.exp(logits).sum()), abs=1e-6)


def test_rows_may_differ_in_temperature():
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    params = [SamplingParams(max_tokens=1, temperature=t) for t in (1.0, 0.25)]
    _, logprobs = sample_tokens(logits, params, [0.999, 0.999])
    assert logprobs == pytest.approx([-np.log1p(np.exp(-1)), -np.log1p(np.exp(-4))], abs=1e-6)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("width", [3, 128, 300])
def test_logits_that_are_not_finite_are_named(value, temperature, width):
    """Damaged weights were an index out of bounds."""
    logits = torch.zeros(2, width)
    logits[1, 1] = value
    params = [SamplingParams(temperature=temperature)] * 2
    with pytest.raises(InfrastructureFault, match="logits are not finite"):
        sample_tokens(logits, params, [0.5, 0.5])
