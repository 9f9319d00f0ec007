"""TRL's `DPOTrainer`, as released, trains on the pairs that people compared: `scripts/setup-integration trl`."""

import math

import pytest

pytest.importorskip("trl", reason="scripts/setup-integration trl")

from datasets import load_dataset
from tests.dashboard.recorded import record
from tests.platform.labels.test_labels import say, traces_of
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

from hud.cli.main import run
from hud.client import connect, disconnect
from hud.engine.tiny_model import create_tiny
from hud_platform.labels.comparisons import Comparisons
from hud_platform.store.ingest import ingest
from hud_platform.store.tables import LOCAL_TEAM

TASK = {"env": "shop", "id": "buy", "args": {}}
TEXTS = ["Buy a kettle", "A red kettle.", "A blue pot.", "No."] * 20


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """The file of a store's comparisons."""
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    parts = connect().embedded.parts
    traces = traces_of(parts, record(parts, "played", {"a": [0.0, 1.0, 0.5]}, task=TASK))
    for trace, text in zip(traces, TEXTS[1:4], strict=True):
        ingest(parts.store, say(trace, text), LOCAL_TEAM)
    comparisons = Comparisons(parts.store, LOCAL_TEAM)
    for better, worse in ((0, 1), (1, 2)):
        comparisons.add(traces[better], traces[worse], "left", "better", "ana", shuffled=True)
    path = tmp_path / "pairs.jsonl"
    assert run(["label", "--dataset", "better", "--to", "comparisons", "-o", str(path)]) == 0
    yield path
    disconnect(tmp_path / "home")


def test_people_s_comparisons_are_a_data_set_of_trl(pairs, tmp_path):
    folder = tmp_path / "tiny"
    create_tiny(folder, TEXTS, vocab_size=300, hidden=32, layers=2, max_context=256)
    data = load_dataset("json", data_files=str(pairs), split="train", cache_dir=str(tmp_path))
    config = DPOConfig(
        output_dir=str(tmp_path / "trl"),
        per_device_train_batch_size=2,
        max_steps=3,
        learning_rate=1e-2,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
    )
    trainer = DPOTrainer(
        AutoModelForCausalLM.from_pretrained(folder),
        args=config,
        train_dataset=data,
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-4)
    assert losses[-1] < losses[0]
