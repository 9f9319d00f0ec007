"""What small models are sampled with computes what the decoder computes."""

import pytest
import torch
from tests.engine.random_decoder import random_decoder

from hud.engine.fused import fused
from hud.engine.kvcache import CacheSize, KVCache
from hud.engine.lora import LoraConfig, attach, lora_parameters

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
PAGES, PROMPT, TURNS = 3, 11, 4


def made(**options):
    """A decoder whose every weight counts, norms and biases too."""
    options = {"max_position_embeddings": 64, **options}
    return random_decoder(spread=0.2, **options).requires_grad_(False)


def logits_of(computing, decoder):
    """The logits after prompts of one width, and after each of some tokens more."""
    size = CacheSize.within(1 << 20, decoder.config, torch.float32, slots=PAGES, max_context=None)
    cache = KVCache(decoder.config, size, torch.float32, torch.device("cpu"))
    tokens = torch.randint(0, 50, (PROMPT + TURNS, PAGES), generator=torch.manual_seed(1))
    found, start = [], 0
    with torch.inference_mode():
        for width in (PROMPT, *[1] * TURNS):
            end = start + width
            positions = cache.aim([[page] for page in range(PAGES)], [start] * 3, [end] * 3, width)
            ids = tokens[start:end].T.flatten()
            found.append(computing.logits(computing.hidden_cached(ids, positions, cache)))
            start = end
    return torch.cat(found)


@pytest.mark.parametrize("options", FAMILIES.values(), ids=FAMILIES)
def test_it_computes_what_the_decoder_computes(options):
    decoder = made(**options)
    torch.testing.assert_close(
        logits_of(fused(decoder), decoder), logits_of(decoder, decoder), rtol=1e-5, atol=2e-5
    )


def test_an_adapter_is_computed_with_and_so_are_later_weights():
    decoder = made()
    computing = fused(decoder)
    before = logits_of(computing, decoder)
    attach(decoder, LoraConfig(rank=4, alpha=8))
    with torch.no_grad():
        for parameter in lora_parameters(decoder).values():
            parameter += torch.randn_like(parameter)
    assert torch.equal(logits_of(computing, decoder), before), "a copy, until it is made anew"
    computing.refresh(decoder)
    # Weights of this size make more of what is rounded: the decoder itself is 1e-5 from what it is in fp64.
    torch.testing.assert_close(
        logits_of(computing, decoder), logits_of(decoder, decoder), rtol=1e-5, atol=5e-5
    )


def test_tiny_numbers_are_normalized_with_the_same_epsilon():
    decoder = made()
    decoder.model.embed_tokens.weight *= 1e-4
    torch.testing.assert_close(
        logits_of(fused(decoder), decoder), logits_of(decoder, decoder), rtol=1e-4, atol=1e-5
    )


def test_weights_in_less_than_fp32_are_sampled_as_they_are():
    assert fused(made().bfloat16()) is None
