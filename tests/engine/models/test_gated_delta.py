"""The chunked gated delta rule is the recurrence, token by token, of each sequence by itself."""

import pytest
import torch

from hud.engine.models.gated_delta import (
    chunked,
    convolution_states,
    convolved,
    decays,
    step,
    unit,
)
from hud.engine.models.state_packing import StatePacking

LENGTHS = (150, 1, 64, 70, 2)
TREE = (-1, 0, 1, 1, -1)
KEY_HEADS, HEADS, KEYS, VALUES, MEMORY = 2, 4, 8, 6, 3


def inputs(tokens, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(tokens, *shape, generator=generator, dtype=dtype)

    q, k = unit(random(KEY_HEADS, KEYS), random(KEY_HEADS, KEYS))
    g = decays(random(HEADS), torch.rand(HEADS, generator=generator), torch.ones(HEADS))
    return q, k, random(HEADS, VALUES), g, random(HEADS).sigmoid()


def packing(lengths=LENGTHS, prefixes=None):
    starts = [sum(lengths[:place]) for place in range(len(lengths))]
    return StatePacking(starts, lengths, sum(lengths), MEMORY, torch.device("cpu"), prefixes)


def recurrence(parts, state):
    outputs = []
    for place in range(len(parts[0])):
        state = state.clone()
        outputs.append(step(*(part[place : place + 1] for part in parts), state))
    return torch.cat(outputs), state


@pytest.mark.parametrize("prefixes", [None, TREE])
def test_chunks_compute_the_recurrence_of_each_sequence(prefixes):
    parts = inputs(sum(LENGTHS))
    outputs, ends = chunked(*parts, packing(prefixes=prefixes), final=True)
    states, start = [], 0
    for sequence, length in enumerate(LENGTHS):
        own = [part[start : start + length] for part in parts]
        before = prefixes[sequence] if prefixes else -1
        state = states[before] if before >= 0 else torch.zeros(1, HEADS, KEYS, VALUES).double()
        expected, state = recurrence(own, state)
        states.append(state)
        torch.testing.assert_close(outputs[start : start + length], expected)
        torch.testing.assert_close(ends[sequence], state[0])
        start += length


def test_a_sequence_continues_from_a_state():
    parts, states = inputs(100), torch.randn(2, HEADS, KEYS, VALUES, dtype=torch.float64)
    outputs, ends = chunked(*parts, packing((30, 70)), states, final=True)
    for row, (start, end) in enumerate(((0, 30), (30, 100))):
        expected, state = recurrence([part[start:end] for part in parts], states[row : row + 1])
        torch.testing.assert_close(outputs[start:end], expected)
        torch.testing.assert_close(ends[row], state[0])


def test_strong_decay_neither_overflows_nor_has_an_undefined_gradient():
    q, k, v, g, beta = (part.float().requires_grad_() for part in inputs(64))
    outputs, _ = chunked(q, k, v, g * 200, beta, packing((64,)))
    gradients = torch.autograd.grad(outputs.sum(), (q, k, v, g, beta))
    assert all(torch.isfinite(gradient).all() for gradient in (outputs, *gradients))


def test_the_convolution_reads_what_a_sequence_continues_and_no_other_one():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(sum(LENGTHS), 5, generator=generator)
    weight = torch.randn(5, MEMORY + 1, generator=generator)
    before = torch.randn(len(LENGTHS), MEMORY, 5, generator=generator)
    packed = packing(prefixes=TREE)
    outputs, ends = convolved(x, weight, packed, before), convolution_states(x, packed, before)
    histories, start = [], 0
    for sequence, length in enumerate(LENGTHS):
        prefix = TREE[sequence]
        history = before[sequence] if prefix < 0 else histories[prefix]
        joined = torch.cat((history, x[start : start + length]))
        expected = torch.stack(
            [(joined[place : place + MEMORY + 1] * weight.T).sum(0) for place in range(length)]
        )
        torch.testing.assert_close(outputs[start : start + length], expected[:length])
        torch.testing.assert_close(ends[sequence], joined[-MEMORY:])
        histories.append(joined[-MEMORY:])
        start += length
