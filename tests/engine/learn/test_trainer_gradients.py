"""The gradient does not depend on how a batch is sent, and custom losses take the same path as built-in ones."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.engine.learn.small_decoder import SmallDecoder, random_datum

from hud.engine.learn import training_pass
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.learn.scoring import scored_by
from hud.errors import UsageError
from hud.learning.losses.formulas import LOSSES
from hud.learning.wire_types import BuiltinLoss

ALL_KEYS = {
    "importance_sampling": {"tis_token_cap": 2.0, "kl_coef": 0.1, "entropy_coef": 0.01},
    "ppo": {"icepop_low": 0.05, "icepop_high": 20.0, "kl_advantage_coef": 0.1},
    "cispo": {"sequence_mask_low": 0.01, "sequence_mask_high": 100.0, "token_mean": 1.0},
    "dro": {"sequence_mean": 1.0},
    "gspo": {"outlier_mask_low": 1e-6, "outlier_mask_high": 1e6},
    "dppo": {"dr_grpo_length": 16.0, "square_coef": 1e-3},
    "cross_entropy": {"kl_coef": 0.1, "kl_estimator": 2.0, "token_mean": 1.0},
}


def batch(seed, count=6):
    rng = np.random.default_rng(seed)
    return [random_datum(rng, traj_idx=number) for number in range(count)]


def trainer(**options):
    return LocalTrainer(SmallDecoder(), reference=SmallDecoder(seed=1), **options)


def gradients(calls, loss, config=None, **options):
    """The gradient after some calls of forward_backward, each with its own datums."""
    it = trainer(**options)
    for datums in calls:
        it.forward_backward(datums, loss, config)
    return it.gradients()


def assert_same(left, right, tolerance=1e-6):
    assert left.keys() == right.keys()
    for name in left:
        assert torch.allclose(left[name], right[name], rtol=tolerance, atol=tolerance), name


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_splitting_reordering_and_packing_never_change_the_gradient(loss, data):
    datums = batch(data.draw(st.integers(0, 1000)))
    config = data.draw(st.sampled_from([{}, ALL_KEYS[loss]]))
    order = data.draw(st.permutations(range(len(datums))))
    cut = data.draw(st.integers(1, len(datums) - 1))
    budget = data.draw(st.integers(1, 80))
    shuffled = [datums[number] for number in order]
    whole = gradients([datums], loss, config, pass_tokens=10_000)
    # A batch whose every sequence is clipped has no gradient to compare.
    assume(any(gradient.abs().max() > 1e-4 for gradient in whole.values()))
    pieces = gradients([shuffled[:cut], shuffled[cut:]], loss, config, pass_tokens=budget)
    assert_same(whole, pieces)


def test_num_substeps_makes_passes_and_no_difference():
    datums, one, many = batch(0), trainer(), trainer()
    first = one.forward_backward(datums, "ppo")
    second = many.forward_backward(datums, "ppo", num_substeps=4)
    assert (first["passes:sum"], second["passes:sum"]) == (1, 4)
    assert first["loss:sum"] == pytest.approx(second["loss:sum"])
    assert_same(one.gradients(), many.gradients())


@pytest.mark.parametrize("entropy", [0.0, 0.1])
@pytest.mark.parametrize("kept", [1 << 28, 0])
def test_chunks_of_logits_give_the_same_gradient(monkeypatch, kept, entropy):
    datums = batch(3)
    whole = gradients([datums], "ppo", {"entropy_coef": entropy})
    monkeypatch.setitem(training_pass.LOGITS_AT_ONCE, "cpu", 23 * 5)
    monkeypatch.setattr(training_pass, "KEPT_LOGITS", kept)
    assert_same(whole, gradients([datums], "ppo", {"entropy_coef": entropy}))


def joined(logprobs, tokens):
    """Logprobs of some tokens and, last, of all others together."""
    others = [token for token in range(len(logprobs)) if token not in tokens]
    last = [logprobs[others].exp().sum().log()] if others else []
    return torch.stack([*(logprobs[token] for token in tokens), *last])


def slow_kl(decoder, reference, datums, top):
    """KL(policy ‖ reference), one position after the other, of the reference's `top` tokens and the others."""
    total = torch.zeros((), dtype=torch.float64)
    for datum in datums:
        tokens = torch.tensor(datum.tokens)
        ends = torch.tensor([0, len(tokens)])
        own, other = (
            side.logits(side.hidden_packed(tokens, torch.arange(len(tokens)), ends))
            for side in (decoder, reference)
        )
        for place in np.flatnonzero(datum.mask):
            p, q = (
                (rows[place - 1] / datum.temperatures[place].item()).log_softmax(-1)
                for rows in (own, other.detach())
            )
            likeliest = q.argsort(descending=True)[:top].tolist()
            mine, theirs = joined(p, likeliest), joined(q, likeliest)
            total = total + (mine.exp() * (mine - theirs)).sum()
    return total


@pytest.mark.parametrize("taught", [False, True], ids=["reference", "teacher"])
@pytest.mark.parametrize("top", [1, 5, 23])
@pytest.mark.parametrize("logits_at_once", [1 << 24, 23 * 5])
def test_the_kl_of_distributions_is_that_of_an_oracle(monkeypatch, logits_at_once, top, taught):
    """All vocabulary is 23 tokens. A teacher's columns are fp32."""
    monkeypatch.setitem(training_pass.LOGITS_AT_ONCE, "cpu", logits_at_once)
    monkeypatch.setattr(training_pass, "KEPT_LOGITS", 0)
    rng = np.random.default_rng(0)
    datums = [random_datum(rng, temperature=temperature) for temperature in (1.0, 0.7, 1.0, 1.3)]
    config = {"kl_coef": 0.5, "kl_estimator": 0.0, "kl_top": float(top)}
    it, reference = trainer(), SmallDecoder(seed=1)
    plain = gradients([datums], "importance_sampling")
    expected = slow_kl(it.decoder, reference, datums, top)
    slopes = dict(
        zip(
            dict(it.decoder.named_parameters()),
            torch.autograd.grad(0.5 * expected, list(it.decoder.parameters())),
            strict=True,
        )
    )
    if taught:
        it.reference = None
    scored = scored_by(reference, datums, top) if taught else datums
    metrics = it.forward_backward(scored, "importance_sampling", config, num_substeps=2)
    actions = sum(datum.actions for datum in datums)
    assert metrics["reference_kl:mean"] * actions == pytest.approx(expected.item(), rel=1e-6)
    total = {name: plain[name] + slopes[name] for name in plain}
    assert_same(it.gradients(), total, 1e-6)


def test_the_trainer_applies_the_temperature_that_was_sampled_with():
    rng = np.random.default_rng(0)
    datum = random_datum(rng, temperature=0.5)
    it = trainer()
    tokens = torch.tensor(datum.tokens)
    hidden = it.decoder.hidden_packed(
        tokens, torch.arange(len(tokens)), torch.tensor([0, len(tokens)])
    )
    expected = (
        (it.decoder.logits(hidden) / 0.5).log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]
    )
    found = it.forward([datum])[0]
    kept = datum.mask > 0
    assert np.allclose(found[kept], expected.detach().numpy()[kept[1:]], atol=1e-6)
    assert (found[~kept] == 0).all()


def custom(name, lp, datum):
    """The five losses as a caller would write them, with torch over leaves."""
    mask = torch.tensor(datum.mask, dtype=torch.float64)
    q = torch.tensor(datum.logprobs, dtype=torch.float64)
    A = torch.tensor(datum.advantages, dtype=torch.float64)
    w = torch.tensor(datum.weights, dtype=torch.float64)
    r = (lp - q).clamp(-20, 20).exp()
    token = {
        BuiltinLoss.CROSS_ENTROPY: lambda: -w * lp,
        BuiltinLoss.IMPORTANCE_SAMPLING: lambda: -r * A,
        BuiltinLoss.PPO: lambda: -torch.minimum(r * A, r.clamp(0.8, 1.2) * A),
        BuiltinLoss.CISPO: lambda: -r.clamp(0.0, 4.0).detach() * lp * A,
        BuiltinLoss.DRO: lambda: -(lp * A - 0.025 * (lp - q) ** 2),
    }[name]()
    return (mask * token).sum()


@pytest.mark.parametrize("name", list(BuiltinLoss))
def test_a_builtin_loss_written_as_a_custom_loss_gives_the_same_gradient(name):
    datums = batch(7)
    builtin, own = trainer(), trainer()
    builtin.forward_backward(datums, name)
    weights = []
    for datum, found in zip(datums, own.forward(datums), strict=True):
        leaf = torch.tensor(found, dtype=torch.float64, requires_grad=True)
        custom(name, leaf, datum).backward()
        weights.append((-leaf.grad).tolist())
    metrics = own.backward(datums, weights)
    assert metrics["ignored_weights:sum"] == 0
    assert_same(builtin.gradients(), own.gradients())


def test_backward_says_what_is_wrong_with_the_weights():
    datums = batch(0, count=2)
    ones = [[1.0] * datum.length for datum in datums]
    it = trainer()
    with pytest.raises(UsageError, match="1 lists of weights were sent for 2 datums"):
        it.backward(datums, ones[:1])
    with pytest.raises(UsageError, match="send one for each token"):
        it.backward(datums, [ones[0][:-1], ones[1]])
    with pytest.raises(UsageError, match="not all finite"):
        it.backward(datums, [[float("nan")] * datums[0].length, ones[1]])
    hidden = sum(int((datum.mask == 0).sum()) for datum in datums)
    assert it.backward(datums, ones)["ignored_weights:sum"] == hidden


def test_logits_are_computed_for_sampled_tokens_only():
    datums, it, seen = batch(0), trainer(), []
    inner = it.decoder.logits
    it.decoder.logits = lambda hidden: (seen.append(len(hidden)), inner(hidden))[1]
    metrics = it.forward_backward(datums)
    assert sum(seen) == metrics["action_tokens:sum"] == sum(datum.actions for datum in datums)
