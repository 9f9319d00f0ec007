"""The check of exactness finds the fastest path that computes a class as plain `transformers` does, or says what differs."""

import json

import pytest
from tests.engine.picture_folders import write_folder
from transformers import AutoConfig

from hud.engine.config import DecoderConfig
from hud.engine.exactness import check
from hud.engine.exactness.check import check_config, check_folder
from hud.engine.foreign import verdicts
from hud.engine.foreign.verdicts import Verdict, exact_path, recorded_verdict
from hud.errors import UsageError


def test_a_class_of_plain_attention_with_windows_is_packed():
    assert check_config(AutoConfig.for_model("mistral")) == Verdict("packed")


def test_a_state_space_is_computed_by_its_own_layers():
    verdict = check_config(AutoConfig.for_model("mamba"))
    assert verdict.path == "tokens"
    assert "packing" in verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "path", "reason"),
    [
        ("llama", "packed", ""),
        ("qwen2", "packed", ""),
        ("qwen3", "packed", ""),
        ("glm4_moe", "packed", ""),
        ("gemma3_text", "packed", ""),
        ("gemma2", "chunks", "capped scores"),
        ("gpt_oss", "chunks", "attention sinks"),
        ("deepseek_v3", "packed", ""),
        ("llama4_text", "chunks", ""),
        ("nemotron_h", "chunks", "packing"),
    ],
)
def test_families_that_people_train_are_exact(kind, path, reason):
    verdict = check_config(AutoConfig.for_model(kind))
    assert verdict.path == path
    assert reason in verdict.reason


def test_a_path_that_differs_is_refused_with_its_part(monkeypatch):
    monkeypatch.setattr(check, "PATHS", ("packed",))
    verdict = check_config(AutoConfig.for_model("mamba"))
    assert verdict.path is None
    assert "MambaForCausalLM is not computed as by transformers: packing" in verdict.reason


def test_a_class_that_makes_no_small_model_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr("hud.engine.exactness.small_model.MOST_PARAMETERS", 10)
    verdict = check_config(AutoConfig.for_model("mistral"))
    assert verdict.path is None
    assert "no small model of it can be made" in verdict.reason


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    AutoConfig.for_model("mamba", architectures=["MambaForCausalLM"]).save_pretrained(tmp_path)
    return tmp_path


def test_a_verdict_on_record_is_not_checked_again(folder, monkeypatch):
    checks = []

    def once(checked):
        checks.append(checked)
        return Verdict("chunks", "packing")

    monkeypatch.setattr(verdicts, "checked", once)
    config = DecoderConfig.from_folder(folder)
    assert recorded_verdict(folder, config) is None
    assert [exact_path(folder, config) for _ in range(2)] == ["chunks", "chunks"]
    assert recorded_verdict(folder, config) == Verdict("chunks", "packing")
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    path.write_text(json.dumps({**raw, "torch_dtype": "bfloat16", "eos_token_id": 5}))
    exact_path(folder, config)
    assert len(checks) == 1
    path.write_text(json.dumps({**raw, "use_bias": True}))
    exact_path(folder, config)
    assert len(checks) == 2


def test_a_refusal_is_one_sentence(folder, monkeypatch):
    monkeypatch.setattr(verdicts, "checked", lambda _: Verdict(None, "X is not exact: cache."))
    config = DecoderConfig.from_folder(folder)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"config\.json: X is not exact: cache\.$"):
            exact_path(folder, config)


@pytest.mark.slow
def test_a_check_is_a_process_with_limits(folder, monkeypatch, checks_of_exactness):
    assert checks_of_exactness(folder).path == "tokens"
    odd = folder / "odd"
    odd.mkdir()
    (odd / "config.json").write_text("{}")
    assert "transformers cannot read" in checks_of_exactness(odd).reason
    monkeypatch.setattr(verdicts, "CPU_SECONDS", 1)
    with pytest.raises(UsageError, match="more than 1 s of processor time"):
        checks_of_exactness(folder)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("idefics3", "chunks"),
        pytest.param("qwen3_vl", "chunks", marks=pytest.mark.slow),
        pytest.param("qwen3_5", "packed", marks=pytest.mark.slow),
        pytest.param("gemma3", "turns", marks=pytest.mark.slow),
    ],
)
def test_classes_with_pictures_are_checked_with_their_processors_pictures(tmp_path, kind, path):
    write_folder(tmp_path, kind)
    assert check_folder(tmp_path).path == path
