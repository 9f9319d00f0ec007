"""Packed sequences attend to the same with torch's variable-length attention, which computes on a GPU alone.

Its mathematics is replaced by a plain loop here; its real interface is called on the meta device.
"""

import copy

import pytest
import torch
from hypothesis import given, settings
from tests.engine.learn.test_trainer_decoder import decoder as small
from tests.engine.learn.test_trainer_decoder import gradients, grouped_batch
from tests.kernels.cpu.test_packed_attention import HEADS, KV_HEADS, check_forest, ends, forests

from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.learn.options import TrainerOptions
from hud.engine.learn.training_pass import PlainPasses
from hud_kernels.cuda.passes import CUDA, CudaPasses
from hud_kernels.cuda.varlen_attention import VarlenPacking, varlen_packing

varlen = pytest.importorskip("torch.nn.attention.varlen")


def looped(q, k, v, starts, seen, longest, longest_seen, *, window_size, enable_gqa):
    """Return what `varlen_attn` does: causal attention that is aligned to each sequence's last key."""
    assert window_size == (-1, 0)
    assert enable_gqa == (q.shape[1] != k.shape[1])
    outputs = []
    for row in range(len(starts) - 1):
        mine = slice(starts[row], starts[row + 1])
        keys = slice(seen[row], seen[row + 1])
        queries = q[mine].transpose(0, 1)
        each, others = queries.shape[1], k[keys].shape[0]
        assert each <= longest
        assert others <= longest_seen
        reach = torch.arange(each)[:, None] + others - each
        outputs.append(
            torch.nn.functional.scaled_dot_product_attention(
                queries,
                k[keys].transpose(0, 1),
                v[keys].transpose(0, 1),
                attn_mask=torch.arange(others) <= reach,
                enable_gqa=enable_gqa,
            ).transpose(0, 1)
        )
    return torch.cat(outputs)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(forests(20))
def test_rows_of_a_tree_attend_as_whole_sequences_do(forest):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen, "varlen_attn", looped)
        places = ends(forest[0])
        packings = [VarlenPacking(places, torch.tensor(forest[1]))]
        if max(forest[1]) < 0:
            packings.append(VarlenPacking(places, None))
        check_forest(forest, packings)


def test_the_real_interface_takes_what_it_is_given():
    places, prefixes = torch.tensor([0, 5, 9, 12]), torch.tensor([-1, 0, 0])
    packing = VarlenPacking(places, prefixes)
    for name, value in vars(packing).items():
        if isinstance(value, torch.Tensor):
            setattr(packing, name, value.to("meta"))
    parts = [
        torch.empty(12, heads, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for heads in (HEADS, KV_HEADS, KV_HEADS)
    ]
    found = packing.attend(*parts)
    assert found.shape == (12, HEADS * 64)
    found.sum().backward()
    assert [part.grad.shape for part in parts] == [part.shape for part in parts]


def test_what_it_cannot_compute_is_padded():
    places = torch.tensor([0, 5])
    assert varlen_packing(places, None, torch.bfloat16, 64) is None  # No GPU.


@pytest.mark.parametrize("recompute", [False, True])
def test_a_gpus_decoder_gives_the_gradient_of_the_reference(recompute):
    reference = small()
    mine = copy.deepcopy(reference)
    plain = LocalTrainer(reference)
    plain._computer = PlainPasses(reference)
    other = LocalTrainer(mine, options=TrainerOptions(recompute_layers=recompute))
    other._computer = CudaPasses(mine)
    datums = grouped_batch()
    plain.forward_backward(datums, "ppo")
    other.forward_backward(datums, "ppo")
    expected = gradients(plain)
    for name, tensor in gradients(other).items():
        torch.testing.assert_close(tensor, expected[name])


def test_recomputed_layers_attend_once():
    counts = {}

    class Counted(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = str(func)
            if "scaled_dot_product" in name and "backward" not in name:
                counts["attention"] = counts.get("attention", 0) + 1
            return func(*args, **(kwargs or {}))

    made = small()
    made.checkpointed = True
    ids = torch.arange(12)
    with Counted():
        hidden = made.hidden_packed(ids, ids, torch.tensor([0, 12]), layers=CUDA)
        hidden.sum().backward()
    assert counts["attention"] == made.config.num_hidden_layers
