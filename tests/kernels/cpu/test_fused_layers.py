"""Passes and sampling of large models on a CPU give what the reference decoder and torch give, in fp32 and in bfloat16."""

import pytest
import torch
from tests.engine.random_decoder import random_decoder

from hud.engine.lora import LoraConfig, attach
from hud.engine.sample.kv_cache import CacheSize, KVCache
from hud.engine.sample.token_sampling import sample_tokens
from hud.trace import SamplingParams
from hud_kernels.cpu.fused_layers import hidden_fused
from hud_kernels.cpu.layer_kernels import kernels_for
from hud_kernels.cpu.packed_products import DecoderProducts
from hud_kernels.cpu.paged_cache import PagedCache
from hud_kernels.cpu.paged_runner import PagedRunner
from hud_kernels.cpu.team import run

SHAPES = {
    "qwen3": {},
    "qwen2": {"model_type": "qwen2"},
    "wide": {"head_dim": 64, "num_attention_heads": 6},
}
SIZE = CacheSize(6, 64, 192)
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def fused(decoder, *arguments):
    return hidden_fused(decoder, DecoderProducts(decoder), *arguments)


def last_states(decoder, kind, compute, counts):
    """Return the hidden states of new tokens of two rows, pass after pass of `counts` tokens each, over a cache of `kind`."""
    cache = kind(decoder.config, SIZE, decoder.dtype, decoder.device)
    generator, states, start = torch.Generator().manual_seed(0), [], 0
    for count in counts:
        ids = torch.randint(0, 64, (2 * count,), generator=generator)
        positions = cache.aim([[4, 0, 1], [2, 5, 3]], [start] * 2, [start + count] * 2, count)
        with torch.inference_mode():
            states.append(compute(decoder, ids, positions, cache))
        start += count
    return torch.cat(states)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_pass_is_the_reference_decoders(shape, dtype):
    decoder = random_decoder(spread=0.5, **SHAPES[shape]).to(dtype)
    counts = [70, 1, 1, 9]
    states = last_states(decoder, PagedCache, fused, counts)
    reference = last_states(decoder, KVCache, type(decoder).hidden_cached, counts)
    difference = (states - reference).float().abs()
    assert difference.mean() < CLOSE[dtype] * reference.float().abs().mean()


@pytest.mark.parametrize("dtype", CLOSE)
def test_an_adapter_is_computed_with(dtype):
    decoder = random_decoder().to(dtype)
    counts = [9, 1]
    before = last_states(decoder, PagedCache, fused, counts)
    attach(decoder, LoraConfig(rank=2))
    for name, parameter in decoder.named_parameters():
        if name.endswith("lora_B"):
            parameter.data.normal_()
    states = last_states(decoder, PagedCache, fused, counts)
    reference = last_states(decoder, KVCache, type(decoder).hidden_cached, counts)
    difference, change = (states - reference).float().abs(), (states - before).float().abs()
    assert difference.mean() < 0.1 * change.mean()
    assert difference.mean() < CLOSE[dtype] * reference.float().abs().mean()


@pytest.mark.parametrize("dtype", CLOSE)
def test_a_refresh_takes_the_weights_as_they_are(dtype):
    decoder = random_decoder().to(dtype)
    runner = PagedRunner(decoder, PagedCache(decoder.config, SIZE, dtype, decoder.device), 1)
    hidden = torch.randn(3, 32).to(dtype)
    for _ in range(2):
        runner.refresh()
        with torch.inference_mode():
            logits, expected = runner.logits(hidden), decoder.logits(hidden)
        torch.testing.assert_close(logits, expected, atol=CLOSE[dtype], rtol=CLOSE[dtype])
        decoder.model.embed_tokens.weight.data.normal_()
        if not decoder.config.tie_word_embeddings:
            decoder.lm_head.weight.data.normal_()


def draw(logits, temperatures, uniforms):
    """Return the ids and logprobs that the kernel samples."""
    ids, logprobs = torch.empty(len(logits), dtype=torch.int64), torch.empty(len(logits)).double()
    arrays = (
        logits,
        torch.tensor(temperatures),
        torch.tensor(uniforms, dtype=torch.float64),
        ids,
        logprobs,
    )
    run(kernels_for(logits.dtype).draw, len(logits), *arrays, *logits.shape)
    return ids.tolist(), logprobs.tolist()


@pytest.mark.parametrize("dtype", CLOSE)
def test_tokens_and_logprobs_are_those_of_torch(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(60, 1000, generator=generator)).to(dtype)
    logits[0, :500] = -torch.inf
    temperatures = [0.0, 0.5, 1.0] * 20
    uniforms = torch.rand(60, generator=generator, dtype=torch.float64).tolist()
    params = [SamplingParams(temperature=temperature) for temperature in temperatures]
    expected_ids, expected = sample_tokens(logits, params, uniforms)
    ids, logprobs = draw(logits, temperatures, uniforms)
    assert ids == expected_ids
    assert logprobs == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("damage", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_have_no_logprob(damage):
    logits = torch.randn(2, 70)
    logits[1, 30] = damage
    logprobs = draw(logits, [1.0, 1.0], [0.5, 0.5])[1]
    assert torch.tensor(logprobs).isfinite().tolist() == [True, False]
