"""How the optimizer keeps its state changes memory, never what a checkpoint holds or how a resumed run goes on."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.learn.small_decoder import SmallDecoder, random_datum

from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.learn.optimizer_state import BLOCK, OptimizerOptions, decode, encode
from hud.engine.learn.options import TrainerOptions

WAYS = [
    OptimizerOptions(),
    OptimizerOptions(offload=True),
    OptimizerOptions(states="8bit"),
    OptimizerOptions(states="8bit", offload=True),
]
EIGHT = OptimizerOptions(states="8bit")


def batch(seed):
    rng = np.random.default_rng(seed)
    return [random_datum(rng, vocab=400, traj_idx=number) for number in range(6)]


def trainer(options, dtype=torch.float32, seed=0):
    # Wide enough that its tables are kept in eight bits.
    made = SmallDecoder(vocab=400, width=16, dtype=dtype, seed=seed)
    return LocalTrainer(made, options=TrainerOptions(optimizer=options))


def steps(it, seeds):
    for seed in seeds:
        it.forward_backward(batch(seed), "ppo")
        it.optim_step(1e-2, weight_decay=0.1, max_grad_norm=1.0)
    return it


def weights(it):
    return {name: tensor.detach().clone() for name, tensor in it.decoder.state_dict().items()}


def assert_equal(left, right):
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


numbers = st.tuples(st.integers(0, 2**31), st.integers(1, 3 * BLOCK), st.floats(-30, 20))


def drawn(seed, count, magnitude):
    """Numbers whose magnitudes spread over ten decades."""
    rng = np.random.default_rng(seed)
    spread = 10.0 ** (magnitude - 10 * rng.random(count))
    return torch.tensor(rng.choice([-1, 1], count) * spread, dtype=torch.float32)


@pytest.mark.slow
@given(numbers)
@settings(max_examples=60, deadline=None)
def test_eight_bits_are_off_by_at_most_a_hundredth_of_their_blocks_largest(given):
    value = drawn(*given)
    for signed in (True, False):
        wanted = value if signed else value.abs()
        codes, scales = encode(wanted, signed=signed)
        assert codes.element_size() == 1
        assert len(scales) == -(-len(value) // BLOCK)
        found = decode(codes, scales, signed=signed)[: len(value)]
        bound = 0.008 * scales.repeat_interleave(BLOCK)[: len(value)] + 1e-28
        assert bool(((found - wanted).abs() <= bound).all())


@pytest.mark.slow
@given(numbers)
@settings(max_examples=60, deadline=None)
def test_what_was_read_keeps_its_codes(given):
    """What resuming bit for bit rests on: a checkpoint holds numbers, not codes."""
    value = drawn(*given)
    for signed in (True, False):
        codes, scales = encode(value if signed else value.abs(), signed=signed)
        again = encode(decode(codes, scales, signed=signed), signed=signed)
        assert torch.equal(again[0], codes)
        assert torch.equal(again[1], scales)


def test_a_second_moment_that_is_not_zero_never_becomes_zero():
    """It is divided by: a zero would make a small step a huge one."""
    value = torch.cat((torch.tensor([1.0, 0.0]), torch.full((BLOCK,), 1e-12)))
    found = decode(*encode(value, signed=False), signed=False)[: len(value)]
    assert found[1] == 0
    assert bool((found[value > 0] > 0).all())


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_run_goes_on_bit_for_bit(options, dtype):
    whole = steps(trainer(options, dtype), range(3))
    state = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    again = trainer(options, dtype, seed=9)
    again.decoder.load_state_dict(weights(whole))
    again.load_state_dict(state)
    assert_equal(weights(steps(whole, range(3, 6))), weights(steps(again, range(3, 6))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_the_state_lies_changes_nothing(dtype):
    here = steps(trainer(OptimizerOptions(), dtype), range(4))
    there = steps(trainer(OptimizerOptions(offload=True), dtype), range(4))
    assert_equal(weights(here), weights(there))
    assert_equal(here.state_dict(), there.state_dict())


def test_a_checkpoint_goes_on_however_states_are_kept():
    state = steps(trainer(EIGHT), range(3)).state_dict()
    exact = trainer(OptimizerOptions())
    exact.load_state_dict(state)
    assert_equal(exact.state_dict(), state)
    # Back in eight bits nothing is lost either: these numbers have been through them.
    eight = trainer(EIGHT)
    eight.load_state_dict(exact.state_dict())
    assert_equal(eight.state_dict(), state)


@pytest.mark.slow
def test_eight_bits_learn_as_well_as_thirty_two():
    losses = {}
    for options in (OptimizerOptions(), EIGHT):
        it = trainer(options)
        for _ in range(60):
            losses[options.states] = it.forward_backward(batch(0), "cross_entropy")["loss:sum"]
            it.optim_step(3e-3)
    first = trainer(EIGHT).forward_backward(batch(0), "cross_entropy")["loss:sum"]
    assert losses["float32"] < 0.5 * first
    assert losses["8bit"] == pytest.approx(losses["float32"], rel=0.02, abs=0.02 * first)
