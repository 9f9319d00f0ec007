"""Model cards: what is recorded of a model, and nothing else."""

from dataclasses import replace

import pytest
from tests.platform.training.test_sessions import home, make, platform, sampled  # noqa: F401

from hud.client import connect
from hud.train import TrainingClient
from hud_platform.exports.model_card import card_subject, write_card
from hud_platform.store.tables import LOCAL_TEAM
from hud_platform.training.runs import TrainingRuns


def card(platform, slug, folder, *, form="hf", checkpoint="head", **options):  # noqa: F811
    folder.mkdir(exist_ok=True)
    registry = platform.registry.of(LOCAL_TEAM)
    model = registry.model(slug)
    subject = card_subject(registry, model, registry.tree.find(model, checkpoint))
    write_card(subject, folder, form, **options)
    return (folder / "README.md").read_text()


async def test_a_model_that_was_not_trained_has_a_card_without_results(home, platform, tmp_path):  # noqa: F811
    await make("fresh", training="lora", lora_rank=4)
    text = card(platform, "fresh", tmp_path / "out")
    assert text.startswith('---\nlibrary_name: "transformers"\npipeline_tag: "text-generation"\n')
    assert "`fresh` at the base weights" in text
    assert "- Base model: `fresh`\n- Licence of the base model: not recorded\n" in text
    assert "- Adapter: LoRA of rank 4, merged into the weights\n" in text
    assert "Not trained here.\n" in text
    assert "None are recorded for this checkpoint.\n" in text
    assert "- Context: 64 tokens\n" in text
    assert "license" not in text.split("---")[1]


@pytest.mark.parametrize("form", ["hf", "peft", "gguf"])
async def test_a_trained_model_s_card_has_its_training_and_held_out_scores(
    home,  # noqa: F811
    platform,  # noqa: F811
    tmp_path,
    form,
):
    await make("base")
    await connect().post("/v2/models/fork", {"source_model_id": "base", "name": "heir"})
    registry = platform.registry.of(LOCAL_TEAM)
    model = registry.model("heir")
    runs = TrainingRuns(platform.store, LOCAL_TEAM)
    config = {
        "tasks": "/home/someone/private/depot.py",
        "held_out": ["held/others.json", "benchmark:grid"],
        "loss": "ppo",
        "group": 4,
        "lr": 1e-3,
        "temperature": 0.7,
        "max_tokens": 1024,
        "system_prompt": 'Be "brief".\nYes.',
    }
    run = runs.start(model.id, config, {})
    client = TrainingClient("heir")
    await client.forward_backward(await sampled([1.0, 0.0], "heir"))
    made = await client.optim_step(learning_rate=1e-3, idempotency_key=f"{run['id']}:0")
    scores = [
        {"step": 0, "mean": 0.25, "low": 0.2, "high": 0.3, "runs": 40},
        {"step": 1, "mean": 0.75, "low": 0.7, "high": 0.8, "runs": 40, "job_id": "j1",
         "checkpoint_id": made.checkpoint_id},
        {"step": 2, "mean": 0.5, "low": None, "high": None, "runs": 4, "checkpoint_id": "f" * 32},
    ]  # fmt: skip
    runs.report(run["id"], 0, {}, 1, {"scores": scores})
    base = replace(registry.model("base"), folder=tmp_path / "folder")
    base.folder.mkdir()
    (base.folder / "README.md").write_text(
        "---\nlanguage: en\nlicense: 'Apache-2.0'\n---\nlicense: no"
    )
    subject = card_subject(registry, registry.model("heir"), made.checkpoint_id)
    config = base.config.model_copy(update={"source": "Qwen/Qwen3-0.6B"})
    subject = replace(subject, base=replace(base, config=config))
    out = tmp_path / "out"
    out.mkdir()
    write_card(subject, out, form, repository="me/heir")
    text = (out / "README.md").read_text()
    front = text.split("---")[1]
    assert 'base_model: "Qwen/Qwen3-0.6B"\nlicense: "apache-2.0"\n' in front
    assert "[Qwen/Qwen3-0.6B](https://huggingface.co/Qwen/Qwen3-0.6B)" in text
    assert (
        f"- Training run `{run['id']}`: 1 step, tasks `depot.py`, held out `others.json`, held out `benchmark:grid`"
        in text
    )
    assert "loss ppo, groups of 4, learning rate 0.001\n" in text
    assert "someone" not in text
    assert "| before training | 0.250 | 0.200 to 0.300 | 40 | – |\n" in text
    assert (
        f"| `{registry.tree.get(made.checkpoint_id).name}` | 0.750 | 0.700 to 0.800 | 40 | `j1` |"
        in text
    )
    assert "0.500" not in text.split("## Held-out scores")[1]
    assert "- Temperature in training: 0.7\n- Tokens of a turn, at most: 1,024\n" in text
    assert '- System prompt: "Be \\"brief\\".\\nYes."\n' in text
    assert "- Format of tool calls: hermes\n" in text
    loading = text.split("## Loading")[1]
    assert {"hf": 'AutoModelForCausalLM.from_pretrained("me/heir")', "gguf": "llama-cli"}.get(
        form, 'PeftModel.from_pretrained(model, "me/heir")'
    ) in loading
