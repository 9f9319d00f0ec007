"""Muon updates hidden matrices as torch's own does, and AdamW everything else; a resumed run goes on bit for bit."""

import pytest
import torch
from tests.engine.learn.test_trainer_optimizer import WAYS, assert_equal, batch, trainer, weights

from hud.engine.learn.optimizer import hidden_matrices
from hud.engine.learn.optimizer_state import OptimizerOptions
from hud.engine.learn.ranks import Ranks
from hud.errors import UsageError

MATRICES = {"q_proj.weight", "k_proj.weight", "v_proj.weight"}


def steps(it, seeds):
    for seed in seeds:
        it.forward_backward(batch(seed), "ppo")
        it.optim_step(1e-2, weight_decay=0.1, max_grad_norm=1.0, optimizer="muon")
    return it


def test_tables_biases_and_the_head_are_no_hidden_matrices():
    assert hidden_matrices(trainer(OptimizerOptions()).decoder, 400) == MATRICES


def test_a_step_is_that_of_torch():
    """Two torch optimizers, given the same gradients, make the same weights."""
    ours, theirs = (trainer(OptimizerOptions(), torch.float64) for _ in range(2))
    parameters = dict(theirs.decoder.named_parameters())
    matrices = [parameter for name, parameter in parameters.items() if name in MATRICES]
    others = [parameter for name, parameter in parameters.items() if name not in MATRICES]
    muon = torch.optim.Muon(
        matrices, lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for seed in range(4):
        steps(ours, [seed])
        theirs.forward_backward(batch(seed), "ppo")
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        muon.step()
        adamw.step()
        theirs.zero_grad()
    for name, parameter in ours.decoder.named_parameters():
        # Muon orthogonalizes in bf16: a last bit of a gradient may move that by one of its steps.
        tolerance = 2e-4 if name in MATRICES else 1e-6
        assert torch.allclose(parameter, parameters[name], rtol=0, atol=tolerance), name


def test_it_is_another_step_than_that_of_adamw():
    by_muon, by_adamw = trainer(OptimizerOptions()), trainer(OptimizerOptions())
    steps(by_muon, [0])
    by_adamw.forward_backward(batch(0), "ppo")
    by_adamw.optim_step(1e-2, weight_decay=0.1, max_grad_norm=1.0)
    after = weights(by_muon), weights(by_adamw)
    assert {
        name for name in after[0] if not torch.equal(after[0][name], after[1][name])
    } == MATRICES


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_goes_on_bit_for_bit(options, dtype):
    straight = steps(trainer(options, dtype), range(3))
    state = {name: tensor.clone() for name, tensor in straight.state_dict().items()}
    assert {name for name in state if name.startswith("second/")}.isdisjoint(
        f"second/{name}" for name in MATRICES
    )
    again = trainer(options, dtype, seed=9)
    again.decoder.load_state_dict(weights(straight))
    again.load_state_dict(state)
    steps(straight, range(3, 6))
    steps(again, range(3, 6))
    assert_equal(weights(straight), weights(again))


def test_shards_of_matrices_are_refused():
    it = trainer(OptimizerOptions())
    it.forward_backward(batch(0), "ppo")
    before = weights(it)
    it._optimizer._ranks = type("Two", (Ranks,), {"count": 2})()
    with pytest.raises(UsageError, match="Muon needs whole matrices"):
        it.optim_step(1e-2, optimizer="muon")
    assert_equal(before, weights(it))
