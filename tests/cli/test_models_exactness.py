"""`hud models add` of a class outside the family: exact and slow, as it says, or refused in one sentence."""

import json

import pytest
from tests.engine.tiny_policy import tiny_folder
from transformers import AutoConfig, AutoModelForCausalLM

from hud.cli.main import run
from hud.client import disconnect
from hud.engine.exactness import check
from hud_platform.models.weight_sources import place_companions

TASKS = """
from hud import Environment

env = Environment("vowels")

@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 20)

tasks = [say(word=word) for word in ("red", "green")]
"""


@pytest.fixture
def hud(tmp_path, monkeypatch, capsys):
    home = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(home))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mamba")
    (tmp_path / "tasks.py").write_text(TASKS)

    def call(line, code=0):
        capsys.readouterr()
        assert run(line.split()) == code
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    yield call
    disconnect(home)


def write(folder):
    """Write a small model of a class with state spaces, with the tokenizer of another."""
    raw = json.loads((tiny_folder() / "config.json").read_text())
    config = AutoConfig.for_model(
        "mamba",
        vocab_size=raw["vocab_size"],
        hidden_size=32,
        state_size=4,
        num_hidden_layers=2,
        eos_token_id=raw["eos_token_id"],
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    place_companions(tiny_folder(), folder)


def test_a_class_of_its_own_state_is_added_as_exact_and_slow(hud):
    said = hud("models add mamba --name mamba")
    assert "mamba is computed one sequence at a time" in said
    assert "Added mamba" in said


@pytest.mark.slow
@pytest.mark.parametrize("training", ["full", "lora"])
def test_it_is_evaluated_and_trained(hud, training):
    adapter = " --lora-rank 2 --lora-targets in_proj,x_proj" if training == "lora" else ""
    hud(f"models add mamba --name mamba{adapter}")
    hud(
        "train mamba tasks.py --steps 1 --group 2 --tasks-per-step 2 --max-tokens 8 --lr 0.01 --seed 3"
    )
    nodes = json.loads(hud("models checkpoints mamba --json"))
    assert len(nodes) == 1
    assert nodes[0]["metrics"]["sampler_gap:max"] < 1e-4


def test_a_class_that_is_not_exact_is_refused_in_one_sentence(hud, monkeypatch):
    monkeypatch.setattr(check, "PATHS", ("packed",))
    said = hud("models add mamba --name mamba", code=2)
    assert "MambaForCausalLM is not computed as by transformers: packing" in said
    assert "Traceback" not in said
    assert hud("models list --json").strip() == "[]"
