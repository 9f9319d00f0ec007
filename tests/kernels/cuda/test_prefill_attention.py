"""Packed prompt chunks attend to what gathered pages give, in Triton's interpreter: any lengths, prefixes and heads."""

from tests.kernels.cuda.interpreted import check, needs_triton

pytestmark = needs_triton

ATTENTION = """
import torch
from hypothesis import Phase, given, settings, strategies as st
from hud_kernels.cuda.prefill.attention import prefill_attention
from hud_kernels.cuda.prefill.packing import pack

HEADS = st.sampled_from([(4, 2), (6, 1), (2, 2), (14, 2)])
# Not bf16: the interpreter multiplies its bits as integers in tl.dot.
TYPES = [(torch.float32, 1e-5), (torch.float16, 4e-3)]


# Without shrinking: the interpreter is slow.
@settings(deadline=None, max_examples=25, derandomize=True, phases=[Phase.generate])
@given(
    lengths=st.lists(st.tuples(st.integers(0, 70), st.integers(1, 40)), min_size=1, max_size=3),
    heads=HEADS,
    page=st.sampled_from([16, 64]),
    kind=st.sampled_from(TYPES),
    seed=st.integers(0, 99),
)
def attends(lengths, heads, page, kind, seed):
    torch.manual_seed(seed)
    (heads, kv_heads), (dtype, bound), dim = heads, kind, 16
    starts, counts = zip(*lengths)
    needed = [-(-(start + count) // page) for start, count in lengths]
    spare = sum(needed)
    keys, values = torch.randn(2, spare + 1, kv_heads, page, dim).to(dtype)
    # No page of another sequence is read, and nothing past a sequence's end.
    keys[spare] = values[spare] = float("nan")
    order = torch.randperm(spare).tolist()
    tables = [[order.pop() for _ in range(count)] + [spare] * 2 for count in needed]
    for table, number, start, count in zip(tables, needed, starts, counts):
        rest = (start + count - 1) % page + 1
        for kept in (keys, values):
            kept[table[number - 1], :, rest:] = float("nan")
    packed = pack(
        [[0] * count for count in counts], tables, starts,
        page_tokens=page, groups=heads // kv_heads, device=torch.device("cpu"),
    )
    q = torch.randn(sum(counts), heads, dim).to(dtype)
    found = prefill_attention(q, keys, values, packed.table, packed.tiles)
    assert found.dtype == dtype
    first = 0
    for table, number, start, count in zip(tables, needed, starts, counts):
        k, v = (
            kept[table[:number]].transpose(0, 1).reshape(kv_heads, -1, dim)[:, : start + count].float()
            for kept in (keys, values)
        )
        visible = torch.arange(start + count) <= torch.arange(start, start + count)[:, None]
        expected = torch.nn.functional.scaled_dot_product_attention(
            q[first : first + count].transpose(0, 1).float(), k, v, attn_mask=visible, enable_gqa=True
        ).transpose(0, 1)
        torch.testing.assert_close(found[first : first + count].float(), expected, atol=bound, rtol=bound)
        first += count


attends()
print("alike")
"""

PASSES = """
import torch
from tests.engine.random_decoder import random_decoder
from hud_kernels.cuda.prefill import passes
from hud_kernels.cuda.decode_layers import hidden_fused
from hud_kernels.cuda.graph_cache import GraphCache
from hud_kernels.cuda.prefill.passes import Prefill
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.kv_cache import CacheSize, KVCache
from hud.engine.sample.plain_runner import PlainRunner

ids, tables, starts = [[3] * 9, [5, 6] * 40, [8]], [[7, 2, 9], [0, 4], [1, 11]], [150, 12, 64]
size = CacheSize(pages=12, page_tokens=64, max_context=256)
for kind in ("qwen3", "qwen2", "llama"):
    decoder = random_decoder(spread=0.2, model_type=kind)
    outputs = []
    for way in ("gathered", "packed", "fused"):
        cache = (KVCache if way == "gathered" else GraphCache)(
            decoder.config, size, torch.float32, torch.device("cpu")
        )
        torch.manual_seed(1)
        cache.keys.normal_()
        cache.values.normal_()
        if way == "fused":  # What a GPU does.
            passes.hidden_states = hidden_fused
        with torch.no_grad():
            if way == "gathered":
                hidden = PlainRunner(decoder, cache, 4).last_hidden(ids, tables, starts)
            else:
                hidden = Prefill(decoder, cache).run(ids, tables, starts)
        # Of these pages every position holds a sequence's token in the one way and in the other.
        outputs.append((hidden, cache.keys[:, [7, 2]], cache.values[:, [7, 2]]))
    for other in outputs[1:]:
        for mine, theirs in zip(other, outputs[0]):
            torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=2e-5)
print("alike")
"""


def test_the_kernel_attends_to_prefix_and_own_tokens_whatever_the_lengths():
    check(ATTENTION)


def test_a_packed_pass_gives_what_a_padded_one_gives():
    check(PASSES)
