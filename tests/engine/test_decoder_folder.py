"""Folders of the family load, save and compute as `transformers` does."""

import itertools
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from hud.engine.pretrained import load_decoder, save_decoder
from hud.engine.sample.kv_cache import CacheSize, KVCache
from hud.errors import NotFoundError, StoreError, UsageError

FAMILY = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def reference(folder, kind, *, tied, dtype=torch.float32, **more):
    config = FAMILY[kind](
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        **more,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model


def packed_logits(decoder, *sequences):
    ids = torch.cat(sequences)
    positions = torch.cat([torch.arange(len(one)) for one in sequences])
    ends = torch.tensor([0, *itertools.accumulate(len(one) for one in sequences)])
    with torch.no_grad():
        return decoder.logits(decoder.hidden_packed(ids, positions, ends))


@pytest.mark.parametrize(("kind", "tied"), list(itertools.product(FAMILY, (True, False))))
def test_packed_logits_are_those_of_transformers_in_fp32(tmp_path, kind, tied):
    model = reference(tmp_path, kind, tied=tied)
    first, second = torch.randint(0, 97, (13,)), torch.randint(0, 97, (7,))
    ours = packed_logits(load_decoder(tmp_path), first, second)
    with torch.no_grad():
        theirs = torch.cat([model(one[None]).logits[0] for one in (first, second)])
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", FAMILY)
def test_bf16_folders_stay_bf16(tmp_path, kind):
    model = reference(tmp_path, kind, tied=False, dtype=torch.bfloat16)
    decoder = load_decoder(tmp_path)
    assert decoder.dtype == torch.bfloat16
    ids = torch.randint(0, 97, (9,))
    with torch.no_grad():
        theirs = model(ids[None]).logits[0]
    torch.testing.assert_close(packed_logits(decoder, ids), theirs, atol=0.05, rtol=0.05)


@pytest.mark.parametrize(("kind", "tied"), list(itertools.product(FAMILY, (True, False))))
def test_a_folder_saved_by_us_loads_in_transformers_with_equal_logits(tmp_path, kind, tied):
    model = reference(tmp_path / "theirs", kind, tied=tied)
    save_decoder(load_decoder(tmp_path / "theirs"), tmp_path / "ours")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    ids = torch.randint(0, 97, (1, 11))
    with torch.no_grad():
        torch.testing.assert_close(again(ids).logits, model(ids).logits, atol=1e-6, rtol=0)


def test_llama3_rotary_scaling_is_that_of_transformers(tmp_path):
    model = reference(tmp_path, "llama", tied=True, rope_scaling={**LLAMA3_ROPE})
    ids = torch.randint(0, 97, (60,))
    with torch.no_grad():
        theirs = model(ids[None]).logits[0]
    torch.testing.assert_close(
        packed_logits(load_decoder(tmp_path), ids), theirs, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize(
    ("size", "table"),
    [
        (CacheSize(pages=3, page_tokens=17, max_context=16), [2]),
        (CacheSize(pages=3, page_tokens=4, max_context=12), [2, 0, 1]),
    ],
    ids=["one page", "several pages"],
)
def test_tokens_on_top_of_a_cache_see_what_a_whole_pass_sees(tmp_path, size, table):
    reference(tmp_path, "qwen3", tied=True)
    decoder = load_decoder(tmp_path)
    ids = torch.randint(0, 97, (10,))
    whole = packed_logits(decoder, ids)
    cache = KVCache(decoder.config, size, torch.float32, torch.device("cpu"))
    with torch.no_grad():
        positions = cache.aim([table], [0], [6], 6)
        chunks = [decoder.hidden_cached(ids[:6], positions, cache)]
        for at in range(6, 10):
            positions = cache.aim([table], [at], [at + 1], 1)
            chunks.append(decoder.hidden_cached(ids[at : at + 1], positions, cache))
        torch.testing.assert_close(decoder.logits(torch.cat(chunks)), whole, atol=1e-5, rtol=0)


def test_an_unknown_architecture_is_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["MambaForCausalLM"]}))
    with pytest.raises(UsageError, match="MambaForCausalLM is not supported"):
        load_decoder(tmp_path)


def test_a_missing_or_damaged_file_is_named(tmp_path):
    with pytest.raises(NotFoundError, match=r"no config\.json"):
        load_decoder(tmp_path)
    reference(tmp_path, "qwen2", tied=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(StoreError, match=r"model\.safetensors is damaged"):
        load_decoder(tmp_path)


def test_weights_that_do_not_fit_the_configuration_are_named(tmp_path):
    reference(tmp_path, "qwen2", tied=True)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "intermediate_size": 64}))
    with pytest.raises(StoreError, match="has shape"):
        load_decoder(tmp_path)
