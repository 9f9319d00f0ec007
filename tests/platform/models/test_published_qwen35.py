"""Qwen3.5 in its published layout: text is sampled and trained, and an export is the whole model again."""

import pytest
import torch
from tests.engine.qwen35 import published_qwen35
from tests.platform.training.test_sessions import home, platform, sampled  # noqa: F401

from hud.client import connect
from hud.engine.pretrained import load_decoder, read_weights
from hud.train import TrainingClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def logprobs_of(folder, ids):
    """Return the logprobs of tokens by the whole model's own class in plain transformers."""
    from transformers import Qwen3_5ForConditionalGeneration

    model = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def assert_sampled_by(folder, batch):
    for payload in batch:
        (sample,) = payload.samples
        ids = [*sample.prompt_token_ids, *sample.output_token_ids]
        expected = logprobs_of(folder, ids)[len(sample.prompt_token_ids) - 1 :]
        found = torch.tensor(sample.output_logprobs)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("training", ["full", "lora"])
async def test_text_is_sampled_trained_exported_and_reloaded(home, tmp_path, training):  # noqa: F811
    base = published_qwen35(tmp_path / "Qwen3.5-4B")
    config = {"training": training, "lora_rank": 4}
    added = await connect().post(
        "/v2/models/add", {"source": str(base), "name": "m", "config": config}
    )
    assert added["path"] != "packed"
    batch = await sampled([1.0, 0.0])
    assert_sampled_by(base, batch)
    client = TrainingClient("m")
    await client.forward_backward(batch)
    await client.optim_step(learning_rate=0.05)
    trained = await sampled([1.0], seed=5)
    out = tmp_path / "out"
    await connect().post("/v2/models/m/export", {"folder": str(out)})
    assert_sampled_by(out, trained)
    before, after = read_weights(base), read_weights(out)
    assert before.keys() - after.keys() == {"mtp.fc.weight"}
    vision = {name for name in after if ".visual." in name}
    assert vision
    assert all(torch.equal(before[name], after[name]) for name in vision)
    assert any(not torch.equal(before[name], after[name]) for name in after.keys() - vision)
    again = await connect().post("/v2/models/add", {"source": str(out), "name": "again"})
    assert again["model_name"] == "again"
    assert load_decoder(out).config.model_type == "qwen3_5_text"
    assert_sampled_by(out, await sampled([1.0], "again"))
