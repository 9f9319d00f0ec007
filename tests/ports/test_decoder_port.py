"""The conformance suite of `hud.engine.decoder.Decoder`."""

import pytest
import torch
from tests.ports.decoders import DECODERS, VOCABULARY

from hud.engine.sample.kv_cache import CacheSize
from hud.engine.sample.plain_runner import runner_type
from hud.engine.sample.prefix_cache import Slot
from hud.engine.sample.saved_states import SlotStates

LENGTHS = [9, 5, 7]
CLOSE = {"atol": 2e-5, "rtol": 1e-4}


@pytest.fixture(params=DECODERS)
def decoder(request):
    return DECODERS[request.param]()


def sequences():
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, VOCABULARY, (length,), generator=generator) for length in LENGTHS]


def packed(decoder, parts, rows=None):
    """Return the hidden states of independent sequences in one pass."""
    positions = torch.cat([torch.arange(len(part)) for part in parts])
    bounds = torch.tensor([0, *map(len, parts)]).cumsum(0)
    return decoder.hidden_packed(torch.cat(parts), positions, bounds, None, rows)


def test_it_says_device_dtype_and_configuration(decoder):
    parameter = next(decoder.parameters())
    assert (decoder.device, decoder.dtype) == (parameter.device, parameter.dtype)
    assert decoder.config.vocab_size == VOCABULARY


def test_packed_sequences_do_not_see_each_other(decoder):
    parts = sequences()
    with torch.no_grad():
        hidden = packed(decoder, parts)
        alone = torch.cat([packed(decoder, [part]) for part in parts])
    assert hidden.shape[0] == sum(LENGTHS)
    assert decoder.logits(hidden).shape == (sum(LENGTHS), VOCABULARY)
    torch.testing.assert_close(hidden, alone, **CLOSE)


def test_rows_are_rows_of_the_pass(decoder):
    parts, rows = sequences(), torch.tensor([2, 8, 13])
    with torch.no_grad():
        torch.testing.assert_close(
            packed(decoder, parts, rows), packed(decoder, parts)[rows], **CLOSE
        )


def test_a_sequence_that_continues_others_is_computed_as_all_in_one(decoder):
    if not decoder.shares_prefixes:
        pytest.skip("this decoder packs without sharing")
    first, second, third = sequences()
    rows, prefixes = [first, second, third, second, first], [-1, 0, 1, 1, 0]
    chains = [[0], [0, 1], [0, 1, 2], [0, 1, 3], [0, 4]]
    before = [sum(len(rows[row]) for row in chain[:-1]) for chain in chains]
    ends = torch.tensor([0, *map(len, rows)]).cumsum(0)
    with torch.no_grad():
        hidden = decoder.hidden_packed(
            torch.cat(rows),
            torch.cat(
                [start + torch.arange(len(row)) for start, row in zip(before, rows, strict=True)]
            ),
            ends,
            torch.tensor(prefixes),
        )
        for row, chain in enumerate(chains):
            joined = packed(decoder, [torch.cat([rows[other] for other in chain])])
            actual = hidden[ends[row] : ends[row + 1]]
            torch.testing.assert_close(actual, joined[before[row] :], **CLOSE)


def test_tokens_on_top_of_a_cache_are_those_of_the_packed_pass(decoder):
    if decoder.keeps_state:
        pytest.skip("this decoder keeps its own state")
    ids, config = sequences()[0], decoder.config
    size = CacheSize.within(1 << 20, config, torch.float32, slots=1, max_context=64)
    cache = runner_type(decoder).cache_type(config, size, torch.float32, decoder.device)
    cache.seat([Slot(state=SlotStates(current=0))])
    states = []
    with torch.no_grad():
        for start, end in ((0, 4), (4, 5), (5, 9)):
            positions = cache.aim([[0]], [start], [end], end - start)
            states.append(decoder.hidden_cached(ids[start:end], positions, cache))
        torch.testing.assert_close(torch.cat(states), packed(decoder, [ids]), **CLOSE)


def test_a_state_that_advances_is_that_of_the_packed_pass(decoder):
    if not decoder.keeps_state:
        pytest.skip("this decoder is sampled with a key-value cache")
    ids, state, last = sequences()[0], None, []
    ends = (4, 5, 9)
    with torch.no_grad():
        for start, end in zip((0, *ends), ends, strict=False):
            state, hidden = decoder.advance(state, ids[start:end].tolist())
            last.append(hidden)
        expected = packed(decoder, [ids])[[end - 1 for end in ends]]
        torch.testing.assert_close(torch.stack(last), expected, **CLOSE)


def test_recomputed_layers_have_the_same_gradient(decoder):
    gradients = []
    for recompute in (False, True):
        decoder.checkpointed = recompute
        assert decoder.checkpointed is recompute
        decoder.requires_grad_(True).zero_grad()
        decoder.logits(packed(decoder, sequences())).log_softmax(-1)[:, 1].sum().backward()
        gradients.append([parameter.grad.clone() for parameter in decoder.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed, **CLOSE)
