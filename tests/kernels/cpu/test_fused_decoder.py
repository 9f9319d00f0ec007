"""What small models are sampled with computes what the decoder computes."""

import pytest
import torch
from tests.engine.random_decoder import random_decoder

from hud.engine.lora import LoraConfig, attach, lora_parameters
from hud.engine.sample.kv_cache import CacheSize, KVCache
from hud_kernels.cpu.fused_decoder import FusedDecoder, can_be_fused

FAMILIES = {
    "qwen3": {"model_type": "qwen3"},
    "qwen2, whose projections have biases": {"model_type": "qwen2"},
    "llama with biases everywhere": {
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
    },
    "an untied head": {"model_type": "qwen3", "tie_word_embeddings": False},
}
LENGTHS = [70, 5, 131]


def made(**options):
    """A decoder whose every weight counts, norms and biases too."""
    options = {"max_position_embeddings": 200, "head_dim": 16, **options}
    return random_decoder(spread=0.2, **options).requires_grad_(False)


def cache_for(decoder):
    size = CacheSize.within(
        1 << 24, decoder.config, torch.float32, slots=len(LENGTHS), max_context=None
    )
    return KVCache(decoder.config, size, torch.float32, torch.device("cpu"))


def turns():
    """New tokens of each row, turn by turn: prompts of unlike lengths, one token each, and a few of some rows."""
    generator = torch.manual_seed(1)
    for counts in (LENGTHS, [1, 1, 1], [1, 1, 1], [3, 1, 40]):
        yield [torch.randint(0, 50, (count,), generator=generator).tolist() for count in counts]


def tables_of(cache):
    each = -(-200 // cache.size.page_tokens)
    return [[row * each + page for page in range(each)] for row in (2, 0, 1)]


def logits_of(computing, cache):
    """The logits after each new token, all rows taking their turns together."""
    starts, found = [0] * len(LENGTHS), []
    for new in turns():
        found.append(computing.logits(computing.run(new, tables_of(cache), starts, cache)))
        starts = [start + len(row) for start, row in zip(starts, new, strict=True)]
    return torch.cat(found)


def logits_alone(decoder, cache):
    """The same by the decoder itself, a row at a time."""
    starts, found = [0] * len(LENGTHS), []
    with torch.inference_mode():
        for new in turns():
            for row, (ids, table) in enumerate(zip(new, tables_of(cache), strict=True)):
                end = starts[row] + len(ids)
                positions = cache.aim([table], [starts[row]], [end], len(ids))
                hidden = decoder.hidden_cached(torch.tensor(ids), positions, cache)
                found.append(decoder.logits(hidden))
                starts[row] = end
    return torch.cat(found)


@pytest.mark.parametrize("options", FAMILIES.values(), ids=FAMILIES)
def test_rows_together_are_what_the_decoder_computes_of_each_alone(options):
    decoder = made(**options)
    torch.testing.assert_close(
        logits_of(FusedDecoder(decoder), cache_for(decoder)),
        logits_alone(decoder, cache_for(decoder)),
        rtol=1e-5,
        atol=5e-5,
    )


def test_a_row_has_the_same_logits_whatever_else_is_computed_with_it():
    decoder = made()
    computing, cache, alone = FusedDecoder(decoder), cache_for(decoder), cache_for(decoder)
    new, tables = next(turns()), tables_of(cache)
    together = computing.run(new, tables, [0] * len(new), cache)
    by_itself = computing.run(new[2:], tables[2:], [0], alone)
    assert torch.equal(together[-len(new[2]) :], by_itself)


def test_an_adapter_is_computed_with_and_so_are_later_weights():
    decoder = made()
    computing = FusedDecoder(decoder)
    before = logits_of(computing, cache_for(decoder))
    attach(decoder, LoraConfig(rank=4, alpha=8))
    with torch.no_grad():
        for parameter in lora_parameters(decoder).values():
            parameter += torch.randn_like(parameter)
    assert torch.equal(logits_of(computing, cache_for(decoder)), before), (
        "a copy, until it is made anew"
    )
    computing.refresh(decoder)
    # Weights of this size make more of what is rounded: the decoder itself is 1e-5 from what it is in fp64.
    torch.testing.assert_close(
        logits_of(computing, cache_for(decoder)),
        logits_alone(decoder, cache_for(decoder)),
        rtol=1e-5,
        atol=1e-4,
    )


def test_tiny_numbers_are_normalized_with_the_same_epsilon():
    decoder = made()
    decoder.model.embed_tokens.weight *= 1e-4
    torch.testing.assert_close(
        logits_of(FusedDecoder(decoder), cache_for(decoder)),
        logits_alone(decoder, cache_for(decoder)),
        rtol=1e-4,
        atol=1e-5,
    )


def test_weights_in_less_than_fp32_are_sampled_as_they_are():
    assert not can_be_fused(made().bfloat16())


def test_so_are_heads_that_are_no_whole_number_of_vectors():
    assert not can_be_fused(made(head_dim=20))
