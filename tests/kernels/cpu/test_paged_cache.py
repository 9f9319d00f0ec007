"""The cache of large models on a CPU attends as the plain one does, in fp32 and in bfloat16, whatever rows there are."""

import pytest
import torch
from tests.engine.random_decoder import random_decoder

from hud.engine.kernels import backend_for
from hud.engine.sample.kv_cache import CacheSize, KVCache
from hud_kernels.cpu import paged_cache, team
from hud_kernels.cpu.paged_cache import PagedCache
from hud_kernels.cpu.paged_runner import PagedRunner

CLOSE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Most difference of an output near 1: of fp32 sums in another order, of bfloat16 weights that are rounded or not."""
WIDTHS = [1, 3, 8, 9, 70]


def filled(kind, config, starts, width, dtype):
    """Return a cache of rows in scattered pages, whose new tokens are written, and the attention output of these."""
    each = -(-(max(starts) + width) // 64)
    size = CacheSize(len(starts) * each, 64, each * 64)
    cache = kind(config, size, dtype, torch.device("cpu"))
    order = torch.randperm(size.pages, generator=torch.Generator().manual_seed(2)).tolist()
    tables = [order[row * each : (row + 1) * each] for row in range(len(starts))]
    generator = torch.Generator().manual_seed(1)
    heads, kv_heads, size = (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )

    def new(count, heads):
        shape = (len(starts) * count, heads, size)
        return torch.randn(shape, generator=generator).to(dtype)

    longest = max(starts)
    if longest:
        # Rows are as long as the longest; what is after a row's start is overwritten or not attended to.
        cache.aim(tables, [0] * len(starts), [longest] * len(starts), longest)
        cache.write(0, new(longest, kv_heads), new(longest, kv_heads))
    positions = cache.aim(tables, starts, [start + width for start in starts], width)
    cache.write(0, new(width, kv_heads), new(width, kv_heads))
    return positions, cache.attend(0, new(width, heads))


@pytest.fixture(scope="module")
def config():
    return random_decoder(head_dim=32, max_position_embeddings=512).config


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("threads", [1, 3])
def test_every_row_attends_to_its_own_tokens(config, dtype, width, threads, monkeypatch):
    monkeypatch.setattr(team.torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(paged_cache, "ALONE", 0)
    positions, attended = filled(PagedCache, config, [130, 64, 0, 1], width, dtype)
    wanted_positions, wanted = filled(KVCache, config, [130, 64, 0, 1], width, dtype)
    assert positions.tolist() == wanted_positions.tolist()
    assert attended.dtype == dtype
    torch.testing.assert_close(attended, wanted, atol=CLOSE[dtype], rtol=CLOSE[dtype])


@pytest.mark.parametrize("starts", [[130, 0], [0, 0]])
def test_many_new_tokens_attend_by_matrix_instructions(config, starts, monkeypatch):
    monkeypatch.setattr(paged_cache, "slower_than_fp32", lambda dtype: False)
    attended = filled(PagedCache, config, starts, 70, torch.bfloat16)[1]
    wanted = filled(KVCache, config, starts, 70, torch.bfloat16)[1]
    torch.testing.assert_close(attended, wanted, atol=2e-2, rtol=2e-2)


def test_pages_are_copied_whole(config):
    size = CacheSize(2, 64, 64)
    cache = PagedCache(config, size, torch.float32, torch.device("cpu"))
    keys = torch.randn(64, config.num_key_value_heads, config.head_dim)
    queries = torch.randn(1, config.num_attention_heads, config.head_dim)
    cache.aim([[0]], [0], [64], 64)
    cache.write(0, keys, keys)
    cache.copy(0, 1)
    outputs = []
    for page in (0, 1):
        cache.aim([[page]], [63], [64], 1)
        cache.write(0, keys[-1:], keys[-1:])
        outputs.append(cache.attend(0, queries))
    assert torch.equal(*outputs)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "used"),
    [
        (torch.float32, 64, True),
        (torch.bfloat16, 64, True),
        (torch.float16, 64, False),
        (torch.bfloat16, 24, False),
    ],
)
def test_models_of_any_size_read_pages(dtype, head_dim, used):
    decoder = random_decoder(head_dim=head_dim).to(dtype)
    backend = backend_for(torch.device("cpu"))
    chosen = backend.runner(decoder, adapters=True)
    assert (chosen is PagedRunner) == used
