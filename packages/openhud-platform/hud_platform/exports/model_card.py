"""Model cards: the README.md of an exported model, with what is recorded of it and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import hud
from hud.engine.model_files.named_models import NAMED_MODELS
from hud.errors import HudError, NotFoundError
from hud.eval.results.held_out_scores import Score, scores_of
from hud_platform.gateway.chat_formats import format_of
from hud_platform.models.card_values import CARD, card_value
from hud_platform.models.lineage import LINEAGE, lineage_of
from hud_platform.models.records import CheckpointRecord, ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.models.weight_sources import is_hub_id
from hud_platform.training.runs import TrainingRuns

_TAGS = {"hf": "transformers", "peft": "peft"}
"""Library of each form, as the hub names it; that of a file is the form's own name."""


@dataclass(frozen=True)
class CardSubject:
    """An exported model, and its records."""

    model: ModelRecord
    base: ModelRecord
    """The model whose weights it began with."""
    checkpoint: CheckpointRecord | None
    """None: the base weights."""
    runs: list[dict[str, Any]]
    """Training runs that led to the checkpoint, the oldest first."""
    lineage: dict[str, str]
    """Slugs of the models whose training is in its weights, by id."""

    @property
    def source(self) -> str:
        """Origin of the base's weights: a hub id, a pretrained model's name, or the base's name here."""
        source = self.base.config.source
        if source is not None and (is_hub_id(source) or source in NAMED_MODELS):
            return source
        return self.base.slug

    @property
    def licence(self) -> str | None:
        """Licence of the base, where it is recorded."""
        named = NAMED_MODELS.get(self.base.config.source or "")
        return named.licence if named is not None else card_value(self.base.folder, "license")


def card_subject(registry: Registry, model: ModelRecord, checkpoint_id: str | None) -> CardSubject:
    """Return a model at a checkpoint, with the training runs behind it."""
    base = model
    while base.base_model_id is not None:
        try:
            base = registry.model(base.base_model_id)
        except NotFoundError:  # It was removed; its files are the fork's.
            break
    checkpoint = None if checkpoint_id is None else registry.tree.get(checkpoint_id)
    runs: dict[str, dict[str, Any]] = {}
    recorded = TrainingRuns(registry.store, model.team_id)
    node = checkpoint
    while node is not None:
        run_id = str(node.metrics.get("idempotency_key", "")).partition(":")[0]
        if run_id and run_id not in runs:
            with suppress(NotFoundError):
                runs[run_id] = recorded.get(run_id)
        try:
            node = None if node.parent_id is None else registry.tree.get(node.parent_id)
        except NotFoundError:
            break
    return CardSubject(
        model, base, checkpoint, list(reversed(runs.values())), lineage_of(registry, model)
    )


def write_card(
    subject: CardSubject, folder: Path, form: str, *, repository: str | None = None
) -> None:
    """Write the card of a model that was exported to a folder in a form; `repository`: its id on a hub."""
    card = "\n".join(_lines(subject, folder, form, repository))
    (folder / CARD).write_text(card + "\n", encoding="utf-8")


def _lines(subject: CardSubject, folder: Path, form: str, repository: str | None) -> Iterator[str]:
    model, checkpoint = subject.model, subject.checkpoint
    yield from _front_matter(subject, form)
    yield f"# {model.slug}"
    yield ""
    state = "the base weights" if checkpoint is None else f"checkpoint `{checkpoint.name}`"
    yield f"`{model.slug}` at {state}, exported by OpenHUD {hud.__version__}."
    yield from ("", "## Origin", "")
    yield f"- Base model: {_linked(subject.source)}"
    yield f"- Licence of the base model: {subject.licence or 'not recorded'}"
    if model.config.training == "lora":
        adapter = "kept apart" if form == "peft" else "merged into the weights"
        yield f"- Adapter: LoRA of rank {model.config.lora_rank}, {adapter}"
    yield from ("", "## Training", "")
    yield from _training(subject)
    yield from ("", "## Held-out scores", "")
    yield from _scores(subject)
    yield from ("", "## Sampling", "")
    yield from _sampling(subject)
    yield from ("", "## Loading", "")
    yield from _loading(subject, folder, form, repository)


def _front_matter(subject: CardSubject, form: str) -> Iterator[str]:
    """Yield the metadata that hubs read, as YAML whose values are JSON."""
    values: dict[str, Any] = {}
    if is_hub_id(subject.source):
        values["base_model"] = subject.source
    if subject.licence is not None:
        values["license"] = subject.licence.lower()
    values |= {
        "library_name": _TAGS.get(form, form),
        "pipeline_tag": "text-generation",
        "tags": ["openhud"],
        LINEAGE: subject.lineage,
    }
    yield "---"
    yield from (f"{name}: {json.dumps(value)}" for name, value in values.items())
    yield "---"


def _training(subject: CardSubject) -> Iterator[str]:
    checkpoint = subject.checkpoint
    if checkpoint is None:
        yield "Not trained here."
        return
    step = checkpoint.training_step or checkpoint.step
    yield f"- Checkpoint: `{checkpoint.name}`, after step {step} of its training"
    if checkpoint.num_traces:
        yield f"- Its last step: {checkpoint.num_traces:,} runs, {checkpoint.num_tokens or 0:,} tokens"
    if checkpoint.mean_reward is not None:
        yield f"- Mean reward of its last step: {checkpoint.mean_reward:.3f}"
    for run in subject.runs:
        config = run["config"]
        yield f"- Training run `{run['id']}`: {_of_run(config, run['next_step'])}"
    if not subject.runs:
        yield "- No training run is recorded."


def _of_run(config: dict[str, Any], steps: int) -> str:
    parts = ["1 step" if steps == 1 else f"{steps:,} steps"]
    if config.get("tasks"):
        parts.append(f"tasks `{_name(config['tasks'])}`")
    held_out = config.get("held_out") or []
    sources = [held_out] if isinstance(held_out, str) else held_out
    parts += [f"held out `{_name(source)}`" for source in sources]
    for name, words in (
        ("loss", "loss {}"),
        ("group", "groups of {}"),
        ("lr", "learning rate {:g}"),
    ):
        if config.get(name) is not None:
            parts.append(words.format(config[name]))
    return ", ".join(parts)


def _name(source: str) -> str:
    """Return a source of tasks without the folders of the machine that it was on."""
    return PurePath(source).name or source


def _scores(subject: CardSubject) -> Iterator[str]:
    """Yield the scores before training and of the checkpoint, with their intervals."""
    rows: list[tuple[str, Score]] = []
    checkpoint = subject.checkpoint
    for run in subject.runs:
        for score in sorted(scores_of(run["state"]), key=lambda score: score.step):
            if score.checkpoint_id == subject.model.config.origin_checkpoint and score.step == 0:
                rows.append(("before training", score))
            elif checkpoint is not None and score.checkpoint_id == checkpoint.id:
                rows.append((f"`{checkpoint.name}`", score))
    if not rows:
        yield "None are recorded for this checkpoint."
        return
    yield "Mean rewards on tasks that were not trained on, with 95% intervals over tasks."
    yield ""
    yield "| weights | score | interval | runs | job |"
    yield "|---|---:|---|---:|---|"
    for name, score in rows:
        interval = "–" if score.low is None else f"{score.low:.3f} to {score.high:.3f}"
        job = "–" if score.job_id is None else f"`{score.job_id}`"
        yield f"| {name} | {score.mean:.3f} | {interval} | {score.runs} | {job} |"


def _sampling(subject: CardSubject) -> Iterator[str]:
    """Yield the settings that the policy was trained with, and its formats."""
    config = subject.runs[-1]["config"] if subject.runs else {}
    for name, words in (
        ("temperature", "Temperature in training: {:g}"),
        ("max_tokens", "Tokens of a turn, at most: {:,}"),
        ("max_turns", "Turns of a run, at most: {:,}"),
        ("reasoning_effort", "Reasoning effort: {}"),
        ("system_prompt", "System prompt: {}"),
    ):
        if config.get(name) is not None:
            value = config[name]
            yield "- " + words.format(
                json.dumps(value, ensure_ascii=False) if name == "system_prompt" else value
            )
    with suppress(HudError):  # A folder without a chat template may be trained, too.
        form = format_of(subject.model.folder, subject.model.config.tool_call_parser)
        yield f"- Context: {form.context:,} tokens"
        yield f"- Format of tool calls: {form.chat.tool_format.names[0]}"
        shown = (
            "shows tools"
            if form.chat.shows_tools
            else "shows no tools: OpenHUD writes them into the system prompt"
        )
        yield f"- The chat template comes with the model; it {shown}"


def _loading(
    subject: CardSubject, folder: Path, form: str, repository: str | None
) -> Iterator[str]:
    place = repository or "PATH/TO/THIS/FOLDER"
    if form not in _TAGS:
        file = next((path.name for path in sorted(folder.glob(f"*.{form}"))), f"*.{form}")
        yield from ("```sh", f"llama-cli -m {file}")
        yield from (f"hud models add {file} --name {subject.model.slug}", "```")
        return
    yield from ("```python", "from transformers import AutoModelForCausalLM, AutoTokenizer")
    if form == "peft":
        yield from ("from peft import PeftModel", "")
        yield f'model = AutoModelForCausalLM.from_pretrained("{_base_place(subject)}")'
        yield f'model = PeftModel.from_pretrained(model, "{place}")'
    else:
        yield from ("", f'model = AutoModelForCausalLM.from_pretrained("{place}")')
    yield from (f'tokenizer = AutoTokenizer.from_pretrained("{place}")', "```")
    if form == "hf":
        yield from ("", "```sh", f"hud models add {place} --name {subject.model.slug}", "```")


def _base_place(subject: CardSubject) -> str:
    return subject.source if is_hub_id(subject.source) else "PATH/TO/THE/BASE"


def _linked(source: str) -> str:
    return f"[{source}](https://huggingface.co/{source})" if is_hub_id(source) else f"`{source}`"
