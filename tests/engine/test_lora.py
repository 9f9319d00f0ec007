"""LoRA adapters: live in the decoder they wrap, saved in PEFT's format, mergeable."""

import copy
import json

import pytest
import torch
from safetensors.torch import load_file
from tests.engine.learn.small_decoder import SmallDecoder, random_datum

from hud.engine.learn.local_trainer import LocalTrainer
from hud.engine.lora import (
    LoraConfig,
    attach,
    disabled,
    load_adapter,
    lora_parameters,
    merge,
    save_adapter,
)
from hud.errors import StoreError, UsageError

CONFIG = LoraConfig(rank=2, alpha=6.0, targets=("q_proj", "v_proj"))
IDS = torch.tensor([3, 1, 4, 1, 5])


def logits(decoder):
    with torch.no_grad():
        hidden = decoder.hidden_packed(IDS, torch.arange(5), torch.tensor([0, 5]))
        return decoder.logits(hidden)


def trained(seed=0):
    import numpy as np

    decoder = SmallDecoder(seed=seed)
    it = LocalTrainer(decoder, lora=CONFIG)
    rng = np.random.default_rng(0)
    for _ in range(3):
        it.forward_backward([random_datum(rng) for _ in range(4)], "cross_entropy")
        it.optim_step(3e-2)
    return decoder


def test_a_fresh_adapter_changes_nothing():
    decoder = SmallDecoder()
    before = logits(decoder)
    attach(decoder, CONFIG)
    assert torch.equal(logits(decoder), before)


def test_only_adapters_train_and_they_are_live_at_once():
    base = SmallDecoder()
    decoder = trained()
    assert set(lora_parameters(decoder)) == {
        f"{layer}.{side}" for layer in ("q_proj", "v_proj") for side in ("lora_A", "lora_B")
    }
    for name, tensor in base.state_dict().items():
        owner, _, leaf = name.rpartition(".")
        inner = f"{owner}.base.{leaf}" if owner in ("q_proj", "v_proj") else name
        assert torch.equal(decoder.state_dict()[inner], tensor)
    assert not torch.allclose(logits(decoder), logits(base))
    with disabled(decoder):
        assert torch.equal(logits(decoder), logits(base))


def test_merging_keeps_the_policy_and_restores_the_names():
    decoder = trained()
    expected = logits(decoder)
    merge(decoder)
    assert torch.allclose(logits(decoder), expected, atol=1e-12)
    fresh = SmallDecoder(seed=5)
    fresh.load_state_dict(decoder.state_dict())
    assert torch.equal(logits(fresh), logits(decoder))


def test_a_saved_adapter_loads_on_a_plain_and_on_a_wrapped_decoder(tmp_path):
    decoder = trained()
    save_adapter(decoder, CONFIG, tmp_path, base="tiny")
    plain, wrapped = SmallDecoder(), SmallDecoder()
    attach(wrapped, CONFIG)
    for other in (plain, wrapped):
        kept = dict(lora_parameters(other))
        assert load_adapter(other, tmp_path) == CONFIG
        assert torch.equal(logits(other), logits(decoder))
        # In place: whoever holds the parameters, such as an optimizer, still holds the right ones.
        assert all(lora_parameters(other)[name] is tensor for name, tensor in kept.items())


def test_the_files_are_those_of_peft(tmp_path):
    save_adapter(trained(), CONFIG, tmp_path, base="tiny")
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 2, 6.0)
    assert config["target_modules"] == ["q_proj", "v_proj"]
    shapes = {
        name: tuple(tensor.shape)
        for name, tensor in load_file(tmp_path / "adapter_model.safetensors").items()
    }
    assert shapes["base_model.model.q_proj.lora_A.weight"] == (2, 8)
    assert shapes["base_model.model.v_proj.lora_B.weight"] == (8, 2)
    assert len(shapes) == 4


def test_damaged_and_foreign_adapters_are_refused(tmp_path):
    save_adapter(trained(), CONFIG, tmp_path)
    with pytest.raises(StoreError, match="adapter of another model"):
        load_adapter(SmallDecoder(width=4), tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(StoreError, match="damaged or missing"):
        load_adapter(SmallDecoder(), tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(StoreError, match="cannot be read as an adapter's configuration"):
        load_adapter(SmallDecoder(), tmp_path)


def test_targets_and_ranks_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="no layer named qkv; its linear layers are: head, k_proj"):
        attach(SmallDecoder(), LoraConfig(targets=("qkv",)))
    with pytest.raises(UsageError, match="rank is 0"):
        LoraConfig(rank=0)
    decoder = SmallDecoder()
    attach(decoder, CONFIG)
    with pytest.raises(UsageError, match="already has an adapter of rank 2"):
        attach(decoder, LoraConfig(rank=4, targets=CONFIG.targets))


def test_a_wrapped_decoder_can_be_copied():
    decoder = trained()
    twin = copy.deepcopy(decoder)
    assert torch.equal(logits(twin), logits(decoder))


@pytest.mark.parametrize(
    "targets", [("q_proj", "v_porj"), ("v_porj",), ("lm_head", ""), ("all-linear",)]
)
def test_a_target_that_is_no_layer_is_refused_beside_those_that_are(targets):
    unknown = sorted(set(targets) - {"q_proj"})
    with pytest.raises(UsageError, match=rf"no layer named {', '.join(unknown)}; .*: .*q_proj"):
        attach(SmallDecoder(), LoraConfig(targets=targets))


def test_of_the_usual_targets_a_model_may_lack_some():
    attach(SmallDecoder(), LoraConfig())
