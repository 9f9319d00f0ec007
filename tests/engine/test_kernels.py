"""What is compiled for the CPU computes what its formula says."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.random_decoder import random_decoder

from hud.engine.fused import FusedDecoder
from hud.engine.kernels import gate, head_kernels, largest, normalize, power_of_two, weigh
from hud.engine.kvcache import CacheSize, KVCache


@given(st.floats(-126, 0, width=32))
def test_a_power_of_two_is_right_to_the_rounding_of_fp32(exponent):
    assert power_of_two(np.float32(exponent)) == pytest.approx(2.0**exponent, rel=2e-7)


def test_what_is_below_the_smallest_normal_number_has_no_mass():
    assert power_of_two(np.float32(-127)) == 0
    assert power_of_two(np.float32(-np.inf)) == 0
    assert power_of_two(np.float32(np.nan)) == 0


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=70))
def test_the_largest_of_some_numbers_is_found_whatever_their_signs(numbers):
    x = np.array(numbers, np.float32)
    assert largest(x) == x.max()


@given(st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=70))
def test_shares_are_a_softmax_to_the_base_of_two(scores):
    x = np.array(scores, np.float32)
    expected = torch.softmax(torch.from_numpy(x).double() * np.log(2.0), dim=0)
    weigh(x)
    np.testing.assert_allclose(x, expected.numpy(), rtol=1e-5, atol=1e-30)


def test_a_gate_is_silu_times_up_even_where_its_exponential_would_overflow():
    gates = torch.tensor([[-1e4, -89.0, -20.0, -1.0, 0.0, 1.0, 20.0, 89.0, 1e4]])
    ups = torch.randn(1, 9, generator=torch.manual_seed(0))
    out = torch.empty(1, 9)
    gate(torch.cat((gates, ups), dim=1).numpy(), out.numpy())
    torch.testing.assert_close(out, F.silu(gates) * ups, rtol=1e-6, atol=1e-30)


def test_rows_are_divided_by_their_lengths():
    x = torch.randn(5, 33, generator=torch.manual_seed(0)) * torch.logspace(-6, 6, 5)[:, None]
    out = torch.empty_like(x)
    normalize(x.numpy(), 1e-6, out.numpy())
    torch.testing.assert_close(out, x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt())


@given(
    size=st.sampled_from([8, 20, 64]),
    group=st.integers(1, 4),
    kv_heads=st.integers(1, 3),
    page_tokens=st.sampled_from([3, 16, 50]),
    lengths=st.lists(st.integers(1, 50), min_size=1, max_size=5),
)
def test_each_row_attends_to_all_it_has_and_to_nothing_else(
    size, group, kv_heads, page_tokens, lengths
):
    generator = torch.manual_seed(len(lengths))
    widest = -(-max(lengths) // page_tokens)
    pages = len(lengths) * widest
    keys, values = (
        torch.randn(pages, kv_heads, page_tokens, size, generator=generator) for _ in range(2)
    )
    tables = torch.randperm(pages, generator=generator).view(len(lengths), widest)
    queries = torch.randn(len(lengths), kv_heads * group, size, generator=generator)
    found = torch.full((len(lengths), kv_heads * group * size), torch.nan)
    head_kernels(size, group, True).attend(
        queries.numpy(),
        keys.numpy(),
        values.numpy(),
        tables.numpy(),
        np.array(lengths),
        found.numpy(),
    )
    for row, length in enumerate(lengths):
        seen = (
            stored[tables[row]].transpose(0, 1).flatten(1, 2)[:, :length]
            for stored in (keys, values)
        )
        wanted = F.scaled_dot_product_attention(queries[row, :, None], *seen, enable_gqa=True)
        torch.testing.assert_close(found[row], wanted.flatten(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("whole", [True, False], ids=["whole pages", "small pages"])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_rows_of_unlike_lengths_take_a_step_together_as_each_would_alone(family, whole):
    decoder = random_decoder(model_type=family, max_position_embeddings=200)
    decoder.requires_grad_(False)
    size = CacheSize.within(
        1 << 24, decoder.config, torch.float32, slots=3, max_context=None, tables=not whole
    )
    assert size.whole == whole
    computing = FusedDecoder(decoder)
    each = 1 if whole else -(-200 // size.page_tokens)
    tables = [[row * each + page for page in range(each)] for row in (2, 0, 1)]
    prompts = [torch.arange(length) % 50 for length in (70, 5, 131)]
    cache, alone = (KVCache(decoder.config, size, torch.float32, torch.device("cpu")) for _ in "12")
    wanted = []
    with torch.inference_mode():
        for table, prompt in zip(tables, prompts, strict=True):
            for one, it in ((cache, computing), (alone, decoder)):
                positions = one.aim([table], [0], [len(prompt)], len(prompt))
                it.hidden_cached(prompt, positions, one)
            positions = alone.aim([table], [len(prompt)], [len(prompt) + 1], 1)
            hidden = decoder.hidden_cached(torch.tensor([7]), positions, alone)
            wanted.append(decoder.logits(hidden))
        hidden = computing.run([7] * 3, tables, [len(prompt) for prompt in prompts], cache)
        torch.testing.assert_close(
            computing.logits(hidden), torch.cat(wanted), rtol=1e-5, atol=2e-5
        )
