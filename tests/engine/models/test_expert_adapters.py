"""LoRA on fused experts: the terms, their merge, and their files, which PEFT reads."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from tests.engine.foreign.test_state_decoder import single
from transformers import AutoConfig, AutoModelForCausalLM

from hud.engine.exactness.small_configs import small_configs
from hud.engine.exactness.small_model import randomized
from hud.engine.lora import (
    LoraConfig,
    attach,
    disabled,
    load_adapter,
    lora_parameters,
    merge,
    save_adapter,
)
from hud.engine.pretrained import load_decoder

KINDS = ("qwen3_moe", pytest.param("gpt_oss", marks=pytest.mark.slow))
SLOW_KINDS = ("glm4_moe", "llama4_text", "qwen3_5_moe_text")
PEFT_KINDS = (*KINDS, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW_KINDS))
CONFIG = LoraConfig(rank=2, alpha=6.0)
IDS = list(range(3, 30))


@pytest.fixture
def folder(tmp_path, request):
    torch.manual_seed(0)
    config = next(small_configs(AutoConfig.for_model(request.param)))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    randomized(model.float().eval()).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def adapted(folder):
    torch.manual_seed(1)
    decoder = load_decoder(folder, dtype=torch.float32)
    attach(decoder, CONFIG)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name.endswith("lora_B"):
                parameter.normal_(std=0.2)
    return decoder


def logprobs(decoder, ids=IDS):
    with torch.no_grad():
        return decoder.logits(decoder.hidden_packed(*single(ids))).log_softmax(-1)


@pytest.mark.parametrize("folder", KINDS, indirect=True)
def test_experts_get_terms_of_their_own_which_merge_and_load(folder, tmp_path):
    decoder = adapted(folder)
    stacked = [name for name, p in decoder.named_parameters() if ".experts." in name and p.ndim > 2]
    assert stacked
    assert not any(decoder.get_parameter(name).requires_grad for name in stacked)
    policy, base = logprobs(decoder), logprobs(load_decoder(folder, dtype=torch.float32))
    with disabled(decoder):
        torch.testing.assert_close(logprobs(decoder), base)
    torch.testing.assert_close(logprobs(copy.deepcopy(decoder)), policy)
    save_adapter(decoder, CONFIG, tmp_path)
    fresh = load_decoder(folder, dtype=torch.float32)
    load_adapter(fresh, tmp_path)
    torch.testing.assert_close(logprobs(fresh), policy)
    merge(decoder)
    assert decoder.state_dict().keys() == load_decoder(folder).state_dict().keys()
    torch.testing.assert_close(logprobs(decoder), policy, atol=1e-5, rtol=0)
    assert (policy - base).abs().max() > 1e-2


@pytest.mark.parametrize("folder", ["qwen3_moe"], indirect=True)
def test_experts_are_adapted_by_the_names_of_the_layers_that_they_stand_for(folder):
    decoder = load_decoder(folder)
    attach(decoder, LoraConfig(rank=2, targets=("q_proj", "down_proj")))
    trained = {name for name, p in decoder.named_parameters() if p.requires_grad}
    assert any("down_proj" in name for name in trained)
    assert not any("gate_up_proj" in name for name in trained)
    attach(decoder, LoraConfig(rank=2))
    assert any("gate_up_proj" in name for name in lora_parameters(decoder))


@pytest.mark.parametrize("folder", PEFT_KINDS, indirect=True)
def test_the_files_are_read_by_peft(folder, tmp_path):
    peft = pytest.importorskip("peft")
    decoder = adapted(folder)
    save_adapter(decoder, CONFIG, tmp_path, base=str(folder))
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(plain.float(), tmp_path).eval()
    with torch.no_grad():
        theirs = model(torch.tensor([IDS]), use_cache=False).logits[0].log_softmax(-1)
    torch.testing.assert_close(logprobs(decoder), theirs, atol=1e-4, rtol=0)
    names = {
        name.replace(".default", "") for name, _ in model.named_parameters() if ".lora_" in name
    }
    assert names == set(load_file(tmp_path / "adapter_model.safetensors"))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert any(name.endswith("experts.down_proj") for name in config["target_parameters"])
