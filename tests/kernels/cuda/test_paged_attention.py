"""Our Triton kernel attends to what gathered pages would give, in Triton's interpreter."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton is not installed: pip install triton"
)

CHECK = """
import torch
from hud_kernels.cuda.paged_attention import paged_attention

torch.manual_seed(0)
for heads, kv_heads, dim, page, lengths in [
    (4, 2, 16, 16, [1, 16, 17, 100]),
    (6, 1, 32, 16, [40]),
    (2, 2, 16, 64, [200, 3, 64, 65, 128]),
]:
    most = -(-max(lengths) // page) + 1
    pages = most * len(lengths) + 1
    keys, values = torch.randn(2, pages, kv_heads, page, dim)
    # Whatever lies in a page that a sequence does not have must not be read.
    keys[pages - 1] = values[pages - 1] = float("nan")
    table = torch.full((len(lengths), most), pages - 1)
    order = torch.randperm(pages - 1)
    for row, length in enumerate(lengths):
        count = -(-length // page)
        table[row, :count] = order[row * most : row * most + count]
        keys[table[row, count - 1], :, (length - 1) % page + 1 :] = float("nan")
        values[table[row, count - 1], :, (length - 1) % page + 1 :] = float("nan")
    q = torch.randn(len(lengths), heads, dim)
    found = paged_attention(q, keys, values, table, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        k, v = (
            kept[table[row, : -(-length // page)]].transpose(0, 1).reshape(kv_heads, -1, dim)[:, :length]
            for kept in (keys, values)
        )
        expected = torch.nn.functional.scaled_dot_product_attention(
            q[row, :, None], k, v, enable_gqa=True
        )[:, 0]
        torch.testing.assert_close(found[row], expected, atol=1e-5, rtol=1e-5)
print("alike")
"""

STEPS = """
import torch
from tests.engine.random_decoder import CONFIG
from dataclasses import replace
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud_kernels.cuda.decode_step import rows_of
from hud_kernels.cuda.graph_cache import GraphCache
from hud.engine.sample.kv_cache import CacheSize

torch.manual_seed(0)
decoder = ReferenceDecoder(replace(CONFIG, head_dim=16)).eval()
size = CacheSize(pages=12, page_tokens=64, max_context=256)
ids, tables, starts = [3, 4, 5], [[7, 2, 9], [0], [1, 11]], [150, 12, 64]
outputs = []
for by_tables in (False, True):
    cache = GraphCache(decoder.config, size, torch.float32, torch.device("cpu"))
    torch.manual_seed(1)
    cache.keys.normal_()
    cache.values.normal_()
    with torch.no_grad():
        if by_tables:
            rows = rows_of(ids, tables, starts, 5, size.pages)
            positions = cache.aim_at_tables(rows[:, 2:], rows[:, 1])
            hidden = decoder.hidden_cached(rows[:, 0], positions, cache)[:3]
        else:
            positions = cache.aim(tables, starts, [start + 1 for start in starts], 1)
            hidden = decoder.hidden_cached(torch.tensor(ids), positions, cache)
    outputs.append((hidden, cache.keys[:, :-1], cache.values[:, :-1]))
for one, other in zip(*outputs):
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
print("alike")
"""


@pytest.mark.parametrize("check", [CHECK, STEPS], ids=["attention", "decode steps"])
def test_the_kernel_attends_to_what_gathered_pages_give(check):
    # Triton reads the variable when it is imported, so this needs a process of its own.
    done = subprocess.run(
        [sys.executable, "-c", check],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.strip() == "alike", done.stderr
