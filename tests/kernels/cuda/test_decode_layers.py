"""The fused layers of a decode step give what the reference gives, within rounding; every kernel compiles for an H100."""

from tests.kernels.cuda.interpreted import check, needs_triton

pytestmark = needs_triton

LAYERS = """
from dataclasses import replace
import torch
from tests.engine.random_decoder import CONFIG, random_decoder
from hud_kernels.cuda.decode_step import rows_of
from hud_kernels.cuda.graph_cache import GraphCache
from hud_kernels.cuda.decode_layers import add_norm, gated, hidden_fused
from hud.engine.models.reference_decoder import ReferenceDecoder, RMSNorm
from hud.engine.sample.kv_cache import CacheSize

torch.manual_seed(0)
# The interpreter cuts bf16 off instead of rounding it, so that fp16 shows where the kernels round.
for dtype, bound in ((torch.float32, 1e-5), (torch.float16, 0.004), (torch.bfloat16, 0.1)):
    for rows, size in ((1, 32), (3, 48), (5, 100)):
        x, added = (torch.randn(rows, size).to(dtype) for _ in range(2))
        norm = RMSNorm(size, 1e-6).to(dtype)
        norm.weight.data.normal_(1.0, 0.2)
        total, normed = add_norm(x, added, norm)
        if dtype == torch.bfloat16:
            torch.testing.assert_close(total, x + added, atol=0.0, rtol=2**-7)
        else:
            assert torch.equal(total, x + added)
        torch.testing.assert_close(normed, norm(x + added), atol=bound / 2, rtol=bound / 2)
        same, normed = add_norm(x, None, norm)
        assert torch.equal(same, x)
        torch.testing.assert_close(normed, norm(x), atol=bound / 2, rtol=bound / 2)
        expected = torch.nn.functional.silu(x) * added
        torch.testing.assert_close(gated(x, added), expected, atol=bound / 2, rtol=bound / 2)
    for kind in ("qwen3", "qwen2", "llama"):
        decoder = random_decoder(spread=0.2, model_type=kind).to(dtype)
        size = CacheSize(pages=4, page_tokens=64, max_context=128)
        outputs = []
        for fused in (False, True):
            torch.manual_seed(1)
            cache = GraphCache(decoder.config, size, dtype, torch.device("cpu"))
            cache.keys.normal_()
            cache.values.normal_()
            rows = rows_of([3, 4, 5], [[2], [0, 3], [1]], [10, 64, 0], 3, size.pages)
            with torch.no_grad():
                positions = cache.aim_at_tables(rows[:, 2:], rows[:, 1])
                run = hidden_fused if fused else ReferenceDecoder.hidden_cached
                outputs.append((run(decoder, rows[:, 0], positions, cache), cache.keys, cache.values))
        for mine, theirs in zip(*outputs):
            torch.testing.assert_close(mine, theirs, atol=bound, rtol=bound)
print("alike")
"""

COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from hud_kernels.cuda import decode_layers, fused_sampling, paged_attention
from hud_kernels.cuda.prefill import attention as prefill_attention

H100 = GPUTarget("cuda", 90, 32)


def compiles(kernel, types, **constants):
    names = kernel.arg_names
    signature = dict(zip([name for name in names if name not in constants], types.split(), strict=True))
    signature |= dict.fromkeys(constants, "constexpr")
    source = triton.compiler.ASTSource(
        kernel, signature={name: signature[name] for name in names}, constexprs=constants
    )
    assert triton.compile(source, target=H100).asm["cubin"]


for cut in (False, True):
    compiles(fused_sampling._sample, "*bf16 *fp32 *fp32 *i32 *fp64 *i64 *fp32 i32 i32", BLOCK=4096, CUT=cut)
for add in (False, True):
    compiles(decode_layers._add_norm, "*bf16 *bf16 *bf16 *bf16 *bf16 i32 fp32", ADD=add, BLOCK=4096)
for normalized in (False, True):
    compiles(
        decode_layers._rotate_and_write,
        "*bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *i64 fp32",
        HEADS=32, KV_HEADS=8, HALF=64, NORMALIZED=normalized,
    )
compiles(decode_layers._gated, "*bf16 *bf16 *bf16 i32", BLOCK=1024)
compiles(
    paged_attention._attend, "*bf16 *bf16 *bf16 *i64 *i64 *fp32 *fp32 fp32 i32", GROUPS=4, ROWS=16, PAGE=64, DIM=128
)
for kind in ("bf16", "fp32"):
    compiles(
        prefill_attention._attend, f"*{kind} *{kind} *{kind} *i64 *i64 *{kind} fp32 i32",
        GROUPS=4, ROWS=64, PAGE=64, DIM=128,
    )
for parts, block in ((1, 1), (5, 8), (16, 16)):
    compiles(paged_attention._combine, "*fp32 *fp32 *bf16", PARTS=parts, BLOCK=block, DIM=128)
print("alike")
"""


def test_fused_layers_give_what_the_reference_gives():
    check(LAYERS)


def test_every_kernel_compiles_for_an_h100_without_one():
    check(COMPILED, interpret=False)
