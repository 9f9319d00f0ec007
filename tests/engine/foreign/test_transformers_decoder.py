"""Models outside the family sample and train through `transformers`, with its logits."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.published_families import published
from tests.engine.test_decoder_folder import packed_logits
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config

from hud.engine.config import DecoderConfig
from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.lora import LoraConfig
from hud.engine.pretrained import load_decoder, load_weights, save_decoder, weight_bytes
from hud.engine.sample.kv_cache import CacheSize, KVCache
from hud.engine.sample.sampler import Sampler
from hud.errors import StoreError, UsageError
from hud.learning.datums import Datum
from hud.trace import SamplingParams

SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FOREIGN = {
    "mistral": {"sliding_window": None},
    "phi3": {},
    "gemma": {"head_dim": 8},
    "olmo2": {},
    "granite": {"logits_scaling": 3.0, "attention_multiplier": 0.4},
    "gpt_neox": {"num_key_value_heads": None},
    "mixtral": {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None},
}


def write(folder, kind, **more):
    given = {key: value for key, value in {**SMALL, **more}.items() if value is not None}
    config = AutoConfig.for_model(kind, **given)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model


def as_datum(prompt, drawn):
    mask = np.array([0.0] * len(prompt) + [1.0] * len(drawn.token_ids), np.float32)
    return Datum(
        tokens=np.array(prompt + drawn.token_ids),
        mask=mask,
        logprobs=np.array([0.0] * len(prompt) + drawn.logprobs, np.float32),
        advantages=mask,
        weights=mask,
        temperatures=np.ones_like(mask),
    )


@pytest.fixture(params=FOREIGN)
def kind(request):
    return request.param


def test_packed_logits_are_those_of_transformers(tmp_path, kind):
    model = write(tmp_path, kind, **FOREIGN[kind])
    first, second = torch.randint(0, 97, (13,)), torch.randint(0, 97, (7,))
    with torch.no_grad():
        theirs = torch.cat([model(one[None]).logits[0] for one in (first, second)])
    ours = packed_logits(load_decoder(tmp_path), first, second)
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def test_tokens_on_top_of_a_cache_see_what_a_whole_pass_sees(tmp_path, kind):
    write(tmp_path, kind, **FOREIGN[kind])
    decoder = load_decoder(tmp_path)
    ids = torch.randint(0, 97, (10,))
    size = CacheSize(pages=2, page_tokens=17, max_context=16)
    cache = KVCache(decoder.config, size, torch.float32, torch.device("cpu"))
    with torch.no_grad():
        positions = cache.aim([[1]], [0], [6], 6)
        chunks = [decoder.hidden_cached(ids[:6], positions, cache)]
        for at in range(6, 10):
            positions = cache.aim([[1]], [at], [at + 1], 1)
            chunks.append(decoder.hidden_cached(ids[at : at + 1], positions, cache))
        ours = decoder.logits(torch.cat(chunks))
    torch.testing.assert_close(ours, packed_logits(decoder, ids), atol=2e-5, rtol=0)


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2, targets=("q_proj", "o_proj"))])
async def test_it_samples_what_it_is_trained_on_and_is_saved_as_it_was_trained(tmp_path, lora):
    write(tmp_path / "base", "mistral", **FOREIGN["mistral"])
    decoder = load_decoder(tmp_path / "base")
    trainer = LocalTrainer(decoder, lora=lora)
    sampler = Sampler(decoder, slots=2)
    prompt = list(range(3, 23))
    drawn = await sampler.sample(prompt, SamplingParams(max_tokens=8, seed=1), frozenset({2}))
    datum = as_datum(prompt, drawn)
    again = trainer.forward([datum])[0][len(prompt) :]
    torch.testing.assert_close(torch.tensor(again), torch.tensor(drawn.logprobs), atol=1e-4, rtol=0)
    before = packed_logits(decoder, torch.tensor(prompt))
    trainer.forward_backward([datum])
    trainer.optim_step(1e-2)
    after = packed_logits(decoder, torch.tensor(prompt))
    assert (after - before).abs().max() > 1e-3
    sampler.close()
    if lora is None:
        save_decoder(decoder, tmp_path / "trained")
        fresh = load_decoder(tmp_path / "base")
        load_weights(fresh, tmp_path / "trained")
        torch.testing.assert_close(packed_logits(fresh, torch.tensor(prompt)), after)


def test_attention_within_a_window_is_that_of_transformers(tmp_path):
    model = write(tmp_path, "mistral", sliding_window=6)
    decoder = load_decoder(tmp_path)
    assert decoder.config.max_position_embeddings == 64
    first, second = torch.randint(0, 97, (23,)), torch.randint(0, 97, (9,))
    with torch.no_grad():
        theirs = torch.cat([model(ids[None]).logits[0] for ids in (first, second)])
    torch.testing.assert_close(packed_logits(decoder, first, second), theirs, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    ("kind", "architecture", "reason"),
    [
        ("bert", "BertForMaskedLM", "BertForMaskedLM is no causal"),
        ("t5", "T5Model", "no causal language model"),
        (
            "pix2struct",
            "Pix2StructForConditionalGeneration",
            "reads pictures, but has no token that stands for one",
        ),
    ],
)
def test_other_models_than_causal_ones_are_refused_by_name(tmp_path, kind, architecture, reason):
    AutoConfig.for_model(kind, architectures=[architecture]).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match=reason):
        DecoderConfig.from_folder(tmp_path)


@pytest.mark.parametrize(
    "odd",
    [
        {"num_attention_heads": 0},
        {"num_attention_heads": "4"},
        {"num_key_value_heads": 3},
        {"num_key_value_heads": -2},
        {"hidden_size": "64"},
        {"hidden_size": -64},
        {"hidden_size": 1 << 60},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": -1},
        {"num_local_experts": 10**9},
        {"vocab_size": -1},
        {"vocab_size": 1.5},
        {"intermediate_size": -8},
        {"head_dim": -8},
        {"max_position_embeddings": -5},
        {"max_position_embeddings": 10**12},
        {"rms_norm_eps": float("nan")},
        {"rms_norm_eps": "x"},
        {"rms_norm_eps": -1.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": float("inf")}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 0}},
        {"sliding_window": -4},
        {"tie_word_embeddings": "yes"},
        {"eos_token_id": "end"},
        {"eos_token_id": [-3]},
    ],
    ids=str,
)
def test_odd_values_of_a_model_outside_the_family_are_refused(tmp_path, odd):
    AutoConfig.for_model("mixtral", **{**SMALL, "num_local_experts": 3}).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    usual = {**json.loads(path.read_text()), "architectures": ["MixtralForCausalLM"]}
    path.write_text(json.dumps(usual))
    assert DecoderConfig.from_folder(tmp_path).num_hidden_layers == SMALL["num_hidden_layers"]
    path.write_text(json.dumps({**usual, **odd}))
    with pytest.raises(UsageError, match="config.json"):
        DecoderConfig.from_folder(tmp_path)


def test_weights_that_a_folder_lacks_are_not_begun_at_random(tmp_path):
    write(tmp_path, "mistral")
    weights = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file(
        {key: weights[key] for key in weights.keys() - {name}},
        tmp_path / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(StoreError, match=f"{name} is missing"):
        load_decoder(tmp_path)


def test_mxfp4_weights_are_read_as_transformers_dequantizes_them_and_saved_without(tmp_path):
    folder = published("gpt_oss", tmp_path / "published")
    settings = Mxfp4Config(dequantize=True)
    plain = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=settings
    )
    decoder = load_decoder(folder, dtype=torch.bfloat16)
    theirs = dict(plain.named_parameters())
    for name, parameter in decoder.named_parameters():
        assert torch.equal(parameter, theirs[name.removeprefix("causal.")])
    assert weight_bytes(folder, torch.bfloat16) == sum(p.nbytes for p in decoder.parameters())
    save_decoder(decoder, tmp_path / "saved")
    assert "quantization_config" not in json.loads((tmp_path / "saved/config.json").read_text())
    saved = dict(load_decoder(tmp_path / "saved").named_parameters())
    assert all(torch.equal(saved[name], p) for name, p in decoder.named_parameters())


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MixtralForCausalLM"])
@pytest.mark.parametrize("method", ["gptq", "new"])
def test_weights_in_a_quantization_that_has_no_plain_form_are_refused(tmp_path, name, method):
    kind = name.removesuffix("ForCausalLM").lower()
    AutoConfig.for_model(kind, **SMALL, architectures=[name]).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    described = {
        **json.loads(path.read_text()),
        "quantization_config": {"quant_method": method, "bits": 4},
    }
    path.write_text(json.dumps(described))
    with pytest.raises(UsageError, match=rf"its weights are quantized \({method}\); add the model"):
        DecoderConfig.from_folder(tmp_path)


def test_blocks_of_fp8_weights_are_read_as_their_products_with_the_scales(tmp_path):
    pytest.importorskip("accelerate")  # transformers asks for it.
    plain = load_decoder(published("qwen3_moe", tmp_path))
    file, described = tmp_path / "model.safetensors", tmp_path / "config.json"
    weights = load_file(file)
    for name, tensor in list(weights.items()):
        if name.endswith("_proj.weight"):
            weights[name] = tensor.to(torch.float8_e4m3fn)
            scales = [-(-size // 128) for size in tensor.shape]
            weights[name.replace("weight", "weight_scale_inv")] = torch.full(scales, 0.5)
    save_file(weights, file, {"format": "pt"})
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = json.loads(described.read_text())
    described.write_text(json.dumps({**config, "quantization_config": quantization}))
    before = dict(plain.named_parameters())
    for name, parameter in load_decoder(tmp_path).named_parameters():
        expected = before[name]
        if "_proj" in name:
            expected = expected.to(torch.float8_e4m3fn).float() * 0.5
        assert torch.equal(parameter, expected)
