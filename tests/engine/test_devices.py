"""Every tensor is where the weights are. The meta device stands for any device that is not the CPU."""

from dataclasses import replace

import pytest
import torch
from tests.engine.random_decoder import CONFIG
from tests.engine.tiny_policy import tiny_folder
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hud.engine.learn.optimizer import AdamW
from hud.engine.learn.optimizer_state import OptimizerOptions
from hud.engine.learn.packed_pass import PackedPass
from hud.engine.learn.training_pass import PlainPasses
from hud.engine.lora import LoraConfig, attach, lora_layers
from hud.engine.models.reference_decoder import ReferenceDecoder, inverse_frequencies
from hud.engine.pretrained import load_decoder
from hud.engine.sample.adapter_bank import AdapterBank
from hud.engine.sample.kv_cache import CacheSize, KVCache
from hud_kernels.cuda.decode_step import DecodeGraphs
from hud_kernels.cuda.graph_cache import GraphCache

META = torch.device("meta")


class OnMeta(TorchDispatchMode):
    """Refuses operations that compute with, or return, tensors of another device; copies to it are allowed."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if func not in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            for one in tree_leaves((args, kwargs, found)):
                # Numbers are tensors without dimensions; where sequences begin is read by the host.
                if (
                    isinstance(one, torch.Tensor)
                    and one.dim()
                    and one.is_floating_point()
                    and not one.is_meta
                ):
                    raise AssertionError(
                        f"{func} over a tensor of {one.device}: {tuple(one.shape)}"
                    )
        return found


def elsewhere(thing):
    """Return the tensors that are reachable from an object and not on the meta device, by how they are reached."""
    found, seen, waiting = [], set(), [("", thing)]
    while waiting:
        name, one = waiting.pop()
        if id(one) in seen or isinstance(one, torch.device | torch.dtype | type | torch.Generator):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found += [] if one.is_meta else [name]
        elif isinstance(one, dict):
            waiting += [(f"{name}[{key!r}]", value) for key, value in one.items()]
        elif isinstance(one, list | tuple | set):
            waiting += [(f"{name}[{place}]", value) for place, value in enumerate(one)]
        elif hasattr(one, "__dict__") and type(one).__module__.startswith(("hud.", "torch.nn.")):
            waiting += [(f"{name}.{key}", value) for key, value in vars(one).items()]
    return found


@pytest.fixture
def decoder():
    with META:
        made = ReferenceDecoder(CONFIG).eval()
    return made


def pass_on_meta():
    ids = torch.zeros(12, dtype=torch.int64, device=META)
    return PackedPass(
        datums=(0,),
        input_ids=ids,
        positions=ids,
        # Where sequences begin is read by the host.
        cu_seqlens=torch.tensor([0, 12]),
        prefixes=None,
        shared_tokens=0,
        prediction=None,
        predicts=ids[:6],
        targets=ids[:6],
        temperatures=torch.ones(6, device=META),
        sequence=ids[:6],
        sampling_logprobs=torch.zeros(6, device=META),
        advantages=torch.zeros(6, device=META),
        weights=torch.ones(6, device=META),
    )


def test_a_decoder_built_under_a_device_is_there_whole(decoder):
    assert decoder.rotary.is_meta
    assert elsewhere(decoder) == []
    assert elsewhere(decoder.half()) == []


def test_a_decoder_loaded_or_moved_keeps_its_rotary_frequencies():
    loaded = load_decoder(tiny_folder())
    torch.testing.assert_close(loaded.rotary, inverse_frequencies(loaded.config))
    assert {one.device.type for one in (*loaded.parameters(), *loaded.buffers())} == {"cpu"}
    assert elsewhere(loaded.to(META)) == []


def test_a_cached_step_computes_where_the_weights_are(decoder):
    size = CacheSize(pages=4, page_tokens=64, max_context=63)
    cache = KVCache(CONFIG, size, torch.float32, META)
    ids = torch.zeros(8, dtype=torch.int64, device=META)
    positions = cache.aim([[0], [1]], [0, 0], [4, 4], 4)
    with OnMeta(), torch.no_grad():
        logits = decoder.logits(decoder.hidden_cached(ids, positions, cache))
    assert logits.shape == (8, CONFIG.vocab_size)
    assert elsewhere(cache) == []


def test_a_training_pass_computes_where_the_weights_are(decoder):
    batch = pass_on_meta()
    with OnMeta():
        logprobs = PlainPasses(decoder).token_scores(batch).logprobs
        logprobs.sum().backward()
    assert all(one.grad.is_meta for one in decoder.parameters())


def test_adapters_are_where_the_weights_are(decoder):
    attach(decoder, LoraConfig(rank=2))
    assert elsewhere(decoder) == []
    with META:
        base = ReferenceDecoder(CONFIG)
    bank = AdapterBank(base)
    adapter = bank.put("v1", lora_layers(decoder))
    bank.aim([adapter, None], width=2)
    assert bank.mask.is_meta
    assert elsewhere(bank) == []


def test_graphs_buffers_are_where_the_cache_is(decoder):
    size = CacheSize(pages=4, page_tokens=64, max_context=128)
    graphs = DecodeGraphs(decoder, GraphCache(CONFIG, size, torch.float32, META), most=4)
    assert elsewhere(graphs) == []


def test_a_training_pass_of_adapters_computes_where_the_weights_are(decoder):
    attach(decoder, LoraConfig(rank=2))
    with OnMeta():
        logprobs = PlainPasses(decoder).token_scores(pass_on_meta()).logprobs
        logprobs.sum().backward()
    layers = lora_layers(decoder).values()
    assert all(one.lora_A.grad.is_meta and one.lora_B.grad.is_meta for one in layers)


def test_a_step_with_an_adapter_per_row_computes_where_the_weights_are(decoder):
    attach(decoder, LoraConfig(rank=2))
    with META:
        bank = AdapterBank(ReferenceDecoder(CONFIG).eval())
    adapter = bank.put("v1", lora_layers(decoder))
    size = CacheSize(pages=4, page_tokens=64, max_context=63)
    cache = KVCache(CONFIG, size, torch.float32, META)
    positions = cache.aim([[0], [1]], [0, 0], [4, 4], 4)
    bank.aim([adapter, None], width=4)
    ids = torch.zeros(8, dtype=torch.int64, device=META)
    with OnMeta(), torch.no_grad():
        hidden = bank.decoder.hidden_cached(ids, positions, cache)
    assert hidden.is_meta


@pytest.mark.parametrize("states", ["float32", "8bit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_optimizers_state_is_where_the_weights_are(dtype, states):
    with META:
        decoder = ReferenceDecoder(replace(CONFIG, hidden_size=64, intermediate_size=128))
    decoder.to(dtype)
    optimizer = AdamW(decoder.named_parameters(), OptimizerOptions(states=states))
    for parameter in decoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.collect()
    # Moments are made at the first update, whose norms the host reads.
    with pytest.raises(RuntimeError, match="meta"):
        optimizer.update(
            learning_rate=1e-3,
            beta1=0.9,
            beta2=0.95,
            eps=1e-8,
            weight_decay=0.0,
            max_grad_norm=None,
        )
    for slot in optimizer._slots:
        assert all(one.is_meta for one in optimizer._moments(slot))
    assert elsewhere(optimizer) == []
