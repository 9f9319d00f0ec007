"""Optimizer steps: AdamW as torch has it, normalizations, refusals, and resuming bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.learn.small_decoder import SmallDecoder, random_datum

from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.lora import LoraConfig
from hud.errors import ConflictError, UsageError

TARGETS = ("q_proj", "v_proj")


def batch(seed, count=5, **options):
    rng = np.random.default_rng(seed)
    return [random_datum(rng, traj_idx=number, **options) for number in range(count)]


def weights(decoder):
    return {name: tensor.detach().clone() for name, tensor in decoder.state_dict().items()}


def test_a_step_is_torchs_adamw():
    it, other = LocalTrainer(SmallDecoder()), SmallDecoder()
    reference = torch.optim.AdamW(
        other.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
    )
    for seed in range(4):
        it.forward_backward(batch(seed))
        for name, parameter in other.named_parameters():
            parameter.grad = it.gradients()[name].clone()
        norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        before = torch.cat([p.detach().flatten() for p in it.decoder.parameters()])
        metrics = it.optim_step(1e-2, weight_decay=0.1, max_grad_norm=0.5)
        reference.step()
        after = torch.cat([p.detach().flatten() for p in it.decoder.parameters()])
        assert metrics["grad_norm:mean"] == pytest.approx(norm.item())
        assert metrics["update_norm:mean"] == pytest.approx((after - before).norm().item())
        assert metrics["update_ratio:mean"] == pytest.approx(
            ((after - before).norm() / before.norm()).item()
        )
    assert it.step == 4
    for mine, theirs in zip(it.decoder.parameters(), other.parameters(), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, alpha=4, targets=TARGETS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path, lora, dtype):
    whole = LocalTrainer(SmallDecoder(dtype=dtype), lora=lora)
    for seed in range(3):
        whole.forward_backward(batch(seed), "ppo")
        whole.optim_step(1e-2)
    save_file(whole.state_dict(), tmp_path / "state.safetensors")
    save_file(weights(whole.decoder), tmp_path / "weights.safetensors")

    again = LocalTrainer(SmallDecoder(dtype=dtype, seed=9), lora=lora)
    again.decoder.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    again.load_state_dict(load_file(tmp_path / "state.safetensors"))
    assert again.step == 3
    for it in (whole, again):
        for seed in range(3, 6):
            it.forward_backward(batch(seed), "ppo")
            it.optim_step(1e-2)
    for name, tensor in weights(whole.decoder).items():
        assert torch.equal(tensor, weights(again.decoder)[name]), name


@pytest.mark.slow
def test_low_precision_weights_move_by_fp32_masters():
    it = LocalTrainer(SmallDecoder(dtype=torch.bfloat16))
    before = weights(it.decoder)
    for _ in range(40):  # one such step is far below bf16's resolution
        it.forward_backward(batch(0), "cross_entropy")
        it.optim_step(1e-5)
    assert any(
        not torch.equal(tensor, before[name]) for name, tensor in weights(it.decoder).items()
    )


def scaled(config, seeds, **options):
    """The gradient that a step applies, seen through plain momentum: first moment / (1 - beta1)."""
    it = LocalTrainer(SmallDecoder())
    for seed in seeds:
        it.forward_backward(batch(seed, **options), "importance_sampling", config)
    raw = it.gradients()
    it.optim_step(1e-3, beta1=0.0)
    state = it.state_dict()
    return raw, {name: state[f"first/{name}"] for name in raw}


def test_normalizations_divide_by_what_the_whole_step_saw():
    tokens = sum(datum.actions for seed in (0, 1) for datum in batch(seed))
    plain, applied = scaled({}, (0, 1))
    _, mean = scaled({"token_mean": 1.0}, (0, 1))
    _, dr = scaled({"dr_grpo_length": 20.0}, (0, 1))
    for name in plain:
        assert torch.allclose(applied[name], plain[name], atol=1e-12)
        assert torch.allclose(mean[name], plain[name] / tokens, atol=1e-12)
        assert torch.allclose(dr[name], plain[name] / (10 * 20), atol=1e-12)


def test_sequence_mean_weighs_a_long_sequence_like_a_short_one():
    parts = []
    for datum in batch(0):
        raw, _ = scaled_one(datum)
        parts.append({name: tensor / datum.actions / 5 for name, tensor in raw.items()})
    _, mean = scaled({"sequence_mean": 1.0}, (0,))
    for name in mean:
        assert torch.allclose(mean[name], sum(part[name] for part in parts), atol=1e-12)


def test_sequence_mean_weighs_a_run_of_several_sequences_like_a_run_of_one():
    datums = batch(0)
    run, others = datums[:3], datums[3:]
    actions = sum(datum.actions for datum in run)
    run = [replace(datum, share=datum.actions / actions, traj_idx=0) for datum in run]
    parts = [
        {name: tensor / length / 3 for name, tensor in scaled_one(datum)[0].items()}
        for datum, length in [
            *((datum, actions) for datum in run),
            *((datum, datum.actions) for datum in others),
        ]
    ]
    for at_most in (None, 1):  # In one pass, and in several.
        it = LocalTrainer(SmallDecoder(), pass_tokens=at_most)
        it.forward_backward([*run, *others], config={"sequence_mean": 1.0})
        it.optim_step(1e-3, beta1=0.0)
        state = it.state_dict()
        for name in parts[0]:
            expected = sum(part[name] for part in parts)
            assert torch.allclose(state[f"first/{name}"], expected, atol=1e-9)


def scaled_one(datum):
    it = LocalTrainer(SmallDecoder())
    it.forward_backward([datum])
    return it.gradients(), None


def test_two_normalizations_do_not_mix_within_a_step():
    it = LocalTrainer(SmallDecoder())
    it.forward_backward(batch(0), config={"token_mean": 1.0})
    with pytest.raises(
        ConflictError, match="accumulated with token_mean so far and cannot add token_sum"
    ):
        it.forward_backward(batch(1))
    it.optim_step(1e-3)
    it.forward_backward(batch(1))


def test_a_gradient_that_is_not_finite_is_refused_and_changes_nothing():
    it = LocalTrainer(SmallDecoder())
    it.forward_backward(batch(0))
    it.optim_step(1e-3)
    before, state = weights(it.decoder), it.state_dict()
    it.forward_backward(batch(1))
    it.decoder.q_proj.weight.grad[0, 0] = float("inf")
    with pytest.raises(
        ConflictError, match=r"not finite \(in 1 of 7 parameters, first q_proj.weight\)"
    ):
        it.optim_step(1e-3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(it.decoder).items())
    assert all(torch.equal(tensor, state[name]) for name, tensor in it.state_dict().items())
    with pytest.raises(ConflictError, match="Nothing was accumulated"):
        it.optim_step(1e-3)


def test_a_loss_that_is_not_finite_is_refused():
    datums = batch(0)
    datums[0].weights[1] = float("nan")
    it = LocalTrainer(SmallDecoder())
    with pytest.raises(ConflictError, match="The loss is nan"):
        it.forward_backward(datums, "cross_entropy")
    assert not it.pending
    assert it.gradients() == {}


def test_an_empty_batch_accumulates_nothing():
    it = LocalTrainer(SmallDecoder())
    assert it.forward_backward([])["loss:sum"] == 0
    with pytest.raises(ConflictError, match="Nothing was accumulated"):
        it.optim_step(1e-3)


def test_zero_advantages_move_nothing():
    it = LocalTrainer(SmallDecoder())
    before = weights(it.decoder)
    datums = batch(0)
    for datum in datums:
        datum.advantages[:] = 0
    it.forward_backward(datums, "ppo")
    it.optim_step(1e-1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(it.decoder).items())


def test_kl_without_a_reference_says_what_to_do():
    with pytest.raises(UsageError, match="KL needs a reference policy"):
        LocalTrainer(SmallDecoder()).forward_backward(batch(0), config={"kl_coef": 0.1})


def test_with_lora_the_base_is_the_reference():
    it = LocalTrainer(SmallDecoder(), lora=LoraConfig(rank=2, targets=TARGETS))
    assert it.forward_backward(batch(0), config={"kl_coef": 0.1})["reference_kl:mean"] == 0
    it.optim_step(1e-1)
    assert it.forward_backward(batch(0), config={"kl_coef": 0.1})["reference_kl:mean"] > 0


def test_a_state_of_another_model_is_refused_whole():
    it = LocalTrainer(SmallDecoder())
    it.forward_backward(batch(0))
    it.optim_step(1e-3)
    other = LocalTrainer(SmallDecoder(width=4))
    with pytest.raises(UsageError, match="belongs to another model"):
        other.load_state_dict(it.state_dict())
    assert other.step == 0


@pytest.mark.slow
def test_metrics_carry_their_reduction_and_learning_works():
    it = LocalTrainer(SmallDecoder())
    datums = batch(0)
    first = it.forward_backward(datums, "cross_entropy")
    for _ in range(30):
        it.optim_step(3e-2)
        last = it.forward_backward(datums, "cross_entropy")
    assert last["loss:sum"] < 0.5 * first["loss:sum"]
    metrics = it.forward_backward(datums, "ppo")
    assert all(name.rpartition(":")[2] in ("sum", "mean", "max", "min") for name in metrics)
    assert {
        "sampler_k1:mean",
        "sampler_k3:mean",
        "sampler_gap:max",
        "clip_fraction:mean",
        "entropy:mean",
    } <= set(metrics)
