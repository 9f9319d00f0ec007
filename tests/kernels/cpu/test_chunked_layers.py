"""A layer's forward pass and gradient written out, in chunks: the plain formulas, and what autograd makes of them."""

import copy

import numpy as np
import pytest
import torch
from tests.engine.learn.small_decoder import random_datum
from tests.kernels.cpu.layer_gradients import adapted, computed, drawn_decoder

from hud.engine.cpu_threads import in_parallel
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.lora import DEFAULT_TARGETS, LoraConfig, attach, disabled, merge
from hud.engine.models.reference_decoder import REFERENCE
from hud_kernels.cpu import chunked_layers as layer_chunks


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    # So that there are several chunks, of unlike size.
    monkeypatch.setattr(layer_chunks, "ROWS", 24)
    yield
    torch.set_num_threads(before)


def chunks_taken(decoder, monkeypatch):
    """Return how often a layer was computed in chunks."""
    taken = []
    forward = layer_chunks.FeedForward.forward
    monkeypatch.setattr(
        layer_chunks.FeedForward,
        "forward",
        staticmethod(lambda *given: taken.append(1) or forward(*given)),
    )
    computed(decoder, next(decoder.parameters()).dtype)
    return len(taken)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3", "qwen2", "llama"])
def test_gradients_are_as_near_to_the_exact_ones_as_the_plain_formulas(kind):
    decoder = drawn_decoder(model_type=kind)
    exact, theirs, mine = (
        computed(decoder, torch.float64),
        computed(decoder, layers=REFERENCE),
        computed(decoder),
    )
    assert mine.keys() == exact.keys()
    for name, one in exact.items():
        error, usual = ((found[name] - one).norm() / one.norm() for found in (mine, theirs))
        assert error <= 3 * usual + 1e-6, name


def test_the_same_is_computed_twice_to_the_bit_and_with_layers_computed_again():
    decoder = drawn_decoder()
    once, twice = computed(decoder), computed(decoder)
    decoder.checkpointed = True
    again = computed(decoder)
    for name, one in once.items():
        assert torch.equal(one, twice[name]), name
        assert torch.equal(one, again[name]), name


@pytest.mark.parametrize("trained", ["norm", "mlp", "self_attn", "embed"])
def test_what_is_frozen_gets_no_gradient_and_the_rest_the_same(trained):
    decoder = drawn_decoder()
    every = computed(decoder)
    for name, parameter in decoder.named_parameters():
        parameter.requires_grad_(trained in name)
    some = computed(decoder)
    assert {name for name in some if name != "hidden"} == {
        name for name, _ in decoder.named_parameters() if trained in name
    }
    for name, one in some.items():
        assert torch.equal(one, every[name]), name


@pytest.mark.parametrize(
    "targets",
    [DEFAULT_TARGETS, ("q_proj", "v_proj"), ("k_proj", "up_proj"), ("o_proj", "down_proj")],
)
@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
def test_gradients_of_adapters_are_as_near_to_the_exact_ones(kind, targets):
    decoder = adapted(kind, targets)
    exact, theirs, mine = (
        computed(decoder, torch.float64),
        computed(decoder, layers=REFERENCE),
        computed(decoder),
    )
    assert mine.keys() == exact.keys()
    assert len(mine) == 1 + 2 * 2 * len(targets)  # A and B in two layers.
    for name, one in exact.items():
        error, usual = ((found[name] - one).norm() / one.norm() for found in (mine, theirs))
        assert error <= 3 * usual + 1e-6, name


def test_disabled_adapters_and_merged_ones_give_the_same_hidden_states():
    decoder = adapted("qwen3", DEFAULT_TARGETS).requires_grad_(False)
    base = drawn_decoder(model_type="qwen3")
    with disabled(decoder):
        assert torch.equal(computed(decoder)["hidden"], computed(base)["hidden"])
    live = computed(decoder)["hidden"]
    merge(decoder)
    torch.testing.assert_close(live, computed(decoder)["hidden"], atol=1e-5, rtol=1e-4)


def test_layers_are_in_chunks_where_all_is_fp32(monkeypatch):
    decoder = drawn_decoder()
    assert chunks_taken(decoder, monkeypatch) == 2
    assert chunks_taken(copy.deepcopy(decoder).to(torch.bfloat16), monkeypatch) == 0
    attach(decoder, LoraConfig(rank=2))
    assert chunks_taken(decoder, monkeypatch) == 2


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)])
def test_passes_side_by_side_give_the_gradient_of_one_and_the_same_bits_each_time(lora):
    rng = np.random.default_rng(0)
    batch = [random_datum(rng, vocab=60, length=80, traj_idx=number) for number in range(24)]
    found = []
    for at_once in (1, 3, 3):
        trainer = LocalTrainer(drawn_decoder(), lora=lora)
        trainer._at_once = at_once
        metrics = trainer.forward_backward(batch, "ppo", {"epsilon": 0.2})
        assert metrics["passes:sum"] == at_once
        found.append((trainer.gradients(), metrics["loss:sum"], trainer.last_logprobs))
    (alone, loss, logprobs), beside, again = found
    assert beside[1] == again[1] == pytest.approx(loss, rel=1e-4)
    for one, other in zip(logprobs, beside[2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    for name, gradient in alone.items():
        assert torch.equal(beside[0][name], again[0][name]), name
        assert (beside[0][name] - gradient).norm() <= 1e-4 * gradient.norm(), name


def test_works_side_by_side_answer_in_their_order_and_one_that_fails_says_so():
    def failing():
        raise ValueError("no")

    assert list(in_parallel([lambda n=n: n for n in range(9)])) == list(range(9))
    with pytest.raises(ValueError, match="no"):
        list(in_parallel([lambda: 1, failing, lambda: 2]))
