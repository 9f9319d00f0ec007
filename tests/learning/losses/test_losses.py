"""Every loss against an oracle that shares no code with it, and its gradient against finite differences."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.losses import loss_oracle

from hud.errors import UsageError
from hud.learning.losses.action_tokens import ActionTokens
from hud.learning.losses.config import DEFAULTS, available_losses, keys_of, parse_loss
from hud.learning.losses.formulas import LOSSES, compute_loss, kl_estimate, sampler_gap

# The same loss twice: the wire's keys, and the oracle's own.
CASES = {
    "cross_entropy": ("cross_entropy", {}, {}),
    "importance_sampling": ("importance_sampling", {}, {}),
    "ppo": ("ppo", {}, {"lo": 0.8, "hi": 1.2}),
    "ppo epsilon": ("ppo", {"epsilon": 0.05}, {"lo": 0.95, "hi": 1.05}),
    "ppo high only": ("ppo", {"clip_high_threshold": 1.5}, {"lo": 0.8, "hi": 1.5}),
    "cispo": ("cispo", {}, {"lo": 0.0, "hi": 4.0}),
    "cispo tight": ("cispo", {"clip_high_threshold": 1.1}, {"lo": 0.0, "hi": 1.1}),
    "dro": ("dro", {}, {"beta": 0.05}),
    "dro beta": ("dro", {"beta": 0.7}, {"beta": 0.7}),
    "gspo": ("gspo", {}, {"lo": 0.9997, "hi": 1.0004}),
    "gspo wide": (
        "gspo",
        {"clip_low_threshold": 0.9, "clip_high_threshold": 1.3},
        {"lo": 0.9, "hi": 1.3},
    ),
    "ppo, dual": ("ppo", {"dual_clip": 1.5}, {"lo": 0.8, "hi": 1.2, "dual_clip": 1.5}),
    "gspo, dual": ("gspo", {"dual_clip": 1.1}, {"lo": 0.9997, "hi": 1.0004, "dual_clip": 1.1}),
    "dppo": ("dppo", {}, {"low": 0.2, "high": 0.2, "square": 0.0}),
    "dppo square": (
        "dppo",
        {"square_coef": 1e-3, "mask_low": 0.01, "mask_high": 0.02},
        {"low": 0.01, "high": 0.02, "square": 1e-3},
    ),
    **{
        name: ("importance_sampling", keys, keys)
        for name, keys in {
            "tis token": {"tis_token_cap": 2.0},
            "tis sequence": {"tis_sequence_cap": 5.0},
            "icepop": {"icepop_low": 0.5, "icepop_high": 2.0},
            "sequence mask": {"sequence_mask_low": 0.9, "sequence_mask_high": 1.1},
            "outlier mask": {"outlier_mask_low": 0.3, "outlier_mask_high": 3.0},
            "two corrections": {"tis_token_cap": 1.3, "icepop_low": 0.5, "icepop_high": 2.0},
            "kl k1": {"kl_coef": 0.3, "kl_estimator": 1.0},
            "kl k2": {"kl_coef": 0.3, "kl_estimator": 2.0},
            "kl k3": {"kl_coef": 0.3, "kl_estimator": 3.0},
            "kl in the advantages": {"kl_advantage_coef": 0.2},
            "entropy": {"entropy_coef": 0.01},
            "sequence mean": {"sequence_mean": 1.0},
            "dr_grpo": {"dr_grpo_length": 7.0},
        }.items()
    },
}


@st.composite
def sequences(draw):
    number = st.floats(-1, 1, allow_nan=False, width=32)

    def token():
        lp = -3 + 2.9 * draw(number)
        gap, ref = draw(number), draw(number)
        # Where it is tempting to be exactly at a kink (equal logprobs), finite differences say nothing.
        q = lp - (0.013 + 1.5 * gap)
        return (lp, q, 2 * draw(number) + 0.01, 1 + draw(number), lp + ref, 2 + draw(number))

    return [
        [token() for _ in range(draw(st.integers(1, 4)))] for _ in range(draw(st.integers(1, 3)))
    ]


def as_tokens(data, logprobs=None):
    flat = [token for sequence in data for token in sequence]
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*flat, strict=True)]
    owner = [number for number, sequence in enumerate(data) for _ in sequence]
    return ActionTokens(
        logprobs=columns[0] if logprobs is None else logprobs,
        sampling_logprobs=columns[1],
        advantages=columns[2],
        weights=columns[3],
        sequence=torch.tensor(owner),
        sequences=len(data),
        reference_logprobs=columns[4],
        entropy=columns[5],
    )


@pytest.mark.parametrize("case", CASES)
@given(data=sequences())
@settings(max_examples=40, deadline=None)
def test_loss_equals_the_slow_oracle(case, data):
    name, keys, oracle_keys = CASES[case]
    loss, _ = compute_loss(as_tokens(data), parse_loss(name, keys))
    assert loss.item() == pytest.approx(
        loss_oracle.loss(name, data, oracle_keys), rel=1e-10, abs=1e-10
    )


def test_every_loss_has_a_case_and_a_place_in_the_list():
    assert {name for name, _, _ in CASES.values()} == set(LOSSES) == set(DEFAULTS)
    assert available_losses()[:5] == ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"]


# Factors that the formulas hold constant (stopgrad, detached corrections) are frozen in the oracle.
SMOOTH = [
    "cross_entropy",
    "importance_sampling",
    "dro",
    "ppo epsilon",
    "gspo wide",
    "kl k2",
    "kl k3",
]


@pytest.mark.parametrize("case", SMOOTH)
@given(data=sequences())
@settings(max_examples=15, deadline=None)
def test_gradient_equals_finite_differences_of_the_oracle(case, data):
    name, keys, oracle_keys = CASES[case]
    flat = torch.tensor(
        [token[0] for sequence in data for token in sequence],
        dtype=torch.float64,
        requires_grad=True,
    )
    compute_loss(as_tokens(data, flat), parse_loss(name, keys))[0].backward()
    step, place = 1e-6, 0
    for s, sequence in enumerate(data):
        for t, token in enumerate(sequence):
            sides = []
            for sign in (1, -1):
                moved = [list(row) for row in data]
                moved[s][t] = (token[0] + sign * step, *token[1:])
                sides.append(loss_oracle.loss(name, moved, oracle_keys))
            expected = (sides[0] - sides[1]) / (2 * step)
            slopes = [
                (sides[0] - loss_oracle.loss(name, data, oracle_keys)) / step,
                (loss_oracle.loss(name, data, oracle_keys) - sides[1]) / step,
            ]
            if abs(slopes[0] - slopes[1]) < 1e-3:  # not across a clip's kink
                assert flat.grad[place].item() == pytest.approx(expected, rel=1e-4, abs=1e-5)
            place += 1


@pytest.mark.parametrize("case", CASES)
@given(data=sequences(), numbers=st.sets(st.integers(0, 11), min_size=1))
@settings(max_examples=25, deadline=None)
def test_tokens_whose_factor_is_zero_have_no_gradient(case, data, numbers):
    name, keys, _ = CASES[case]
    config = parse_loss(name, keys)
    if config.factor is None:
        return
    logprobs = as_tokens(data).logprobs.requires_grad_()
    tokens = as_tokens(data, logprobs)
    still = [number for number in numbers if number < len(logprobs)]
    getattr(tokens, config.factor)[still] = 0.0
    compute_loss(tokens, config)[0].backward()
    assert not logprobs.grad[still].any()


@pytest.mark.parametrize("case", ["dro", "gspo wide", "dppo square", "kl k3", "entropy"])
def test_losses_with_other_terms_have_no_factor(case):
    name, keys, _ = CASES[case]
    assert parse_loss(name, keys).factor is None


@pytest.mark.parametrize("name", ["importance_sampling", "ppo", "dro", "gspo", "dppo"])
def test_gradcheck(name):
    torch.manual_seed(1)
    q = torch.randn(6, dtype=torch.float64) - 3
    lp = (q + 0.3 * torch.randn(6, dtype=torch.float64)).requires_grad_()
    advantages, weights = torch.randn(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64)
    config = parse_loss(
        name, {"clip_low_threshold": 0.7, "clip_high_threshold": 1.4} if name == "gspo" else {}
    )
    owner = torch.tensor([0, 0, 0, 1, 1, 1])

    def run(lp):
        return compute_loss(ActionTokens(lp, q, advantages, weights, owner, 2), config)[0]

    assert torch.autograd.gradcheck(run, (lp,))


def test_cispo_holds_its_weight_constant():
    lp = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([-3.0, -2.1], dtype=torch.float64)
    A = torch.tensor([1.5, -0.5], dtype=torch.float64)
    one = torch.ones(2, dtype=torch.float64)
    tokens = ActionTokens(lp, q, A, one, torch.tensor([0, 0]), 1)
    compute_loss(tokens, parse_loss("cispo", {}))[0].backward()
    expected = -torch.tensor([4.0, torch.tensor(0.1, dtype=torch.float64).exp()]).double() * A
    assert torch.allclose(lp.grad, expected)


def test_corrections_carry_no_gradient():
    lp = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, dtype=torch.float64)
    tokens = ActionTokens(lp, lp.detach() - 0.1, one, one, torch.tensor([0]), 1)
    compute_loss(tokens, parse_loss("cispo", {"tis_token_cap": 2.0}))[0].backward()
    ratio = torch.tensor(0.1, dtype=torch.float64).exp()
    assert torch.allclose(lp.grad, -(ratio**2))


def test_a_huge_log_ratio_stays_finite():
    lp = torch.tensor([-0.1, -2000.0], requires_grad=True)
    tokens = ActionTokens(
        lp, torch.tensor([-900.0, -0.1]), torch.ones(2), torch.ones(2), torch.tensor([0, 0]), 1
    )
    for name in ("importance_sampling", "ppo", "cispo", "dppo", "gspo"):
        loss, sums = compute_loss(tokens, parse_loss(name, {}))
        assert torch.isfinite(loss)
        assert all(torch.isfinite(value.float()) for value in sums.values())


def test_ppo_counts_what_it_clips():
    lp = torch.tensor([0.5, -0.5, 0.5, 0.0]) - 2
    q = torch.full((4,), -2.0)
    A = torch.tensor([1.0, -1.0, -1.0, 1.0])
    tokens = ActionTokens(lp, q, A, torch.ones(4), torch.zeros(4, dtype=torch.int64), 1)
    _, sums = compute_loss(tokens, parse_loss("ppo"))
    assert sums["clip_fraction"].item() == 2


def test_kl_estimators_agree_near_zero_and_k3_is_never_negative():
    d = torch.linspace(-1, 1, 21, dtype=torch.float64)
    zero = torch.zeros_like(d)
    assert (kl_estimate(d, zero, 3) >= -1e-15).all()
    assert torch.allclose(kl_estimate(d * 1e-3, zero, 2), kl_estimate(d * 1e-3, zero, 3), atol=1e-9)


def test_sampler_gap_is_zero_on_policy():
    lp = torch.tensor([-1.0, -2.0])
    tokens = ActionTokens(lp, lp, lp, lp, torch.tensor([0, 0]), 1)
    gap = sampler_gap(tokens)
    assert [gap[f"sampler_k{k}"].item() for k in (1, 2, 3)] == [0, 0, 0]
    assert gap["entropy"].item() == 3


@pytest.mark.parametrize(
    ("name", "config", "says"),
    [
        ("pppo", {}, "There is no loss 'pppo'; there are: cross_entropy"),
        ("ppo", {"epsilom": 0.2}, "takes no key 'epsilom'; it takes: clip_low_threshold"),
        ("importance_sampling", {"beta": 0.1}, "takes no key 'beta'"),
        ("cross_entropy", {"icepop_low": 0.5}, "takes no key 'icepop_low'"),
        ("ppo", {"epsilon": 0.2, "clip_low_threshold": 0.9}, "not both"),
        ("ppo", {"clip_low_threshold": 1.3}, "must be below clip_high_threshold"),
        ("ppo", {"epsilon": float("nan")}, "must be finite"),
        ("dro", {"beta": -1.0}, "must not be negative"),
        ("ppo", {"dual_clip": 1.1}, "must be above clip_high_threshold"),
        ("cispo", {"dual_clip": 3.0}, "takes no key 'dual_clip'"),
        ("ppo", {"kl_estimator": 4.0}, "must be 0, 1, 2 or 3"),
        ("ppo", {"kl_top": 0.0}, "kl_top is 0.0; it must be a whole number from 1 up"),
        ("ppo", {"kl_top": 2.5}, "kl_top is 2.5"),
        ("ppo", {"token_mean": 1.0, "sequence_mean": 1.0}, "Choose one normalization"),
    ],
)
def test_what_a_loss_does_not_take_is_refused_by_name(name, config, says):
    with pytest.raises(UsageError, match=says):
        parse_loss(name, config)


@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_with_a_dual_clip_no_token_pushes_once_it_has_become_that_much_likelier(advantage):
    logprobs = torch.tensor([-0.1], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, dtype=torch.float64)
    tokens = ActionTokens(
        logprobs=logprobs,
        sampling_logprobs=-9 * one,
        advantages=advantage * one,
        weights=one,
        sequence=torch.zeros(1, dtype=torch.long),
        sequences=1,
    )
    total, sums = compute_loss(tokens, parse_loss("ppo", {"dual_clip": 3.0}))
    total.backward()
    assert logprobs.grad.item() == 0
    assert sums["dual_clip_fraction"] == (advantage < 0)


def test_every_documented_key_is_taken_and_listed():
    for name in available_losses():
        for key in keys_of(name):
            value = {"kl_estimator": 2.0, "epsilon": 0.1, "dual_clip": 3.0}.get(key)
            if value is None:
                low, high = ("low" in key), ("high" in key)
                value = 0.4 if low else 1.7 if high else 1.0
            parse_loss(name, {key: value})
