"""Families in their published layouts: sampled, trained, exported and reloaded as plain `transformers` computes them."""

import inspect
import json

import pytest
import torch
from tests.engine.picture_folders import png, shown, write_folder
from tests.engine.published_families import FAMILIES, published
from tests.platform.training.test_sessions import home, platform  # noqa: F401

from hud.client import connect
from hud.engine.pictures.processor import picture_processor
from hud.engine.pretrained import read_weights
from hud.inference.models import chat_model
from hud.trace import SamplingParams
from hud.train import TrainingClient, TrajectoryPayload, TrajectorySample

pytestmark = pytest.mark.timeout(600)

WITH_EXPERTS = ("qwen3_5_moe", "qwen3_moe", "gpt_oss", "glm4_moe", "llama4")
WITH_PICTURES = ("qwen3_vl", "qwen3_5", "qwen3_5_moe", "gemma3")
CLOSE = 1e-4
FAST = ("qwen3_moe", "lora")
TRIALS = [
    pytest.param(family, training, marks=() if (family, training) == FAST else pytest.mark.slow)
    for family in (*FAMILIES, *(f"pictures-{kind}" for kind in WITH_PICTURES))
    for training in ("full", "lora")
]


def folder_of(family, folder):
    """Write a family's folder and return it; those with pictures are named `pictures-KIND`."""
    kind = family.removeprefix("pictures-")
    if kind == family:
        return published(family, folder)
    write_folder(folder, kind)
    return folder


def asked(family, seed):
    """Return a conversation, with a picture where the family reads them."""
    if not family.startswith("pictures-"):
        return [{"role": "user", "content": "what?"}]
    parts = [{"type": "text", "text": "what?"}, shown(png(seed))]
    return [{"role": "user", "content": parts}]


async def sampled(family, slug, rewards, seed=0):
    """Trajectories that a model itself sampled, one for each reward."""
    model = await chat_model(slug)
    payloads = []
    for place, reward in enumerate(rewards):
        params = SamplingParams(max_tokens=6, seed=seed + place)
        done = await model.complete(asked(family, seed + place), [], params)
        samples = [TrajectorySample.model_construct(**vars(done.sample))]
        payloads.append(TrajectoryPayload(samples=samples, reward=reward))
    return payloads


def plain(folder):
    """Load a folder with plain `transformers`, by the class that it names."""
    import transformers

    described = json.loads((folder / "config.json").read_text())
    kind = getattr(transformers, described["architectures"][0])
    settings = {"dtype": torch.float32, "attn_implementation": "eager"}
    if "quantization_config" in described:
        settings["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    return kind.from_pretrained(folder, **settings).eval()


def inputs_of(folder, sample):
    """Return a sample's ids and what the folder's own processor makes of its pictures."""
    ids = torch.tensor([[*sample.prompt_token_ids, *sample.output_token_ids]])
    if not sample.pictures:
        return {"input_ids": ids}
    values = picture_processor(folder).values([picture.file for picture in sample.pictures])
    described = json.loads((folder / "config.json").read_text())
    token = described.get("image_token_id", described.get("image_token_index"))
    kinds = (ids == token).long()
    return {"input_ids": ids, **values, "mm_token_type_ids": kinds, "token_type_ids": kinds}


def difference(model, folder, batch):
    """Return the largest difference of the batch's logprobs from those of a model of `transformers`."""
    accepted = inspect.signature(type(model).forward).parameters
    largest = 0.0
    for payload in batch:
        (sample,) = payload.samples
        inputs = inputs_of(folder, sample)
        inputs = {name: value for name, value in inputs.items() if name in accepted}
        with torch.no_grad():
            logits = model(**inputs, use_cache=False).logits[0, :-1]
        ids = inputs["input_ids"][0]
        logprobs = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0]
        theirs = logprobs[len(sample.prompt_token_ids) - 1 :]
        largest = max(largest, float((torch.tensor(sample.output_logprobs) - theirs).abs().max()))
    return largest


@pytest.mark.parametrize(("family", "training"), TRIALS)
async def test_a_family_is_sampled_trained_exported_and_reloaded(home, tmp_path, family, training):  # noqa: F811
    base = folder_of(family, tmp_path / "base")
    experts = family.removeprefix("pictures-") in WITH_EXPERTS
    config = {"training": training, "lora_rank": 4, "dtype": "float32", "router_replay": experts}
    await connect().post("/v2/models/add", {"source": str(base), "name": "m", "config": config})
    batch = await sampled(family, "m", [1.0, 0.0])
    measured = {"sampled": difference(plain(base), base, batch)}
    client = TrainingClient("m")
    metrics = (await client.forward_backward(batch)).metrics
    measured["sampler_gap"] = metrics["sampler_gap:max"]
    assert metrics.get("replayed_tokens:mean") == (1.0 if experts else None)
    await client.optim_step(learning_rate=0.05)
    trained = await sampled(family, "m", [1.0, 0.0], seed=5)
    assert difference(plain(base), base, trained) > 1e-2
    out = tmp_path / "out"
    await connect().post("/v2/models/m/export", {"folder": str(out)})
    measured["exported"] = difference(plain(out), out, trained)
    await connect().post("/v2/models/add", {"source": str(out), "name": "again"})
    again = await sampled(family, "again", [1.0, 0.0], seed=5)
    measured["reloaded"] = max(
        abs(first - second)
        for ours, theirs in zip(trained, again, strict=True)
        for first, second in zip(
            ours.samples[0].output_logprobs, theirs.samples[0].output_logprobs, strict=True
        )
    )
    assert max(measured.values()) < CLOSE, measured
    before, after = read_weights(base), read_weights(out)
    gone = {n for n in before if n.startswith("mtp.") or n.endswith(("_blocks", "_scales"))}
    assert before.keys() - after.keys() == gone
    if family.startswith("pictures-"):
        return
    tower = {name for name in after if "vision" in name or "visual" in name}
    assert all(torch.equal(before[name], after[name]) for name in tower)
    stacked = [name for name in after if ".experts." in name and "bias" not in name]
    assert bool(stacked) == experts
    # Of weights in a file of each expert, those without a token stay.
    changed = [name not in before or not torch.equal(before[name], after[name]) for name in stacked]
    assert any(changed) == experts
