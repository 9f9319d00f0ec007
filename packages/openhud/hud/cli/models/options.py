"""Shared options of `hud models` commands, and the output for a new model."""

from __future__ import annotations

from typing import Any

import click

from hud.byte_sizes import parse_bytes
from hud.cli.output import count, tell, training_usage
from hud.engine.sample.options import BESIDE_TRAINING, SLOT_LIMIT

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
runtime_option = click.option(
    "--runtime",
    default="local",
    show_default=True,
    help="local, fork, subprocess or tcp://HOST:PORT.",
)


def training_options(function: Any) -> Any:
    """Training options of a new model."""
    for option in (
        click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default=None),
        click.option(
            "--recompute-layers",
            is_flag=True,
            default=None,
            help="Gradient checkpointing: less memory, with recomputation.",
        ),
        click.option(
            "--router-replay",
            is_flag=True,
            default=None,
            help="Train with the experts by which tokens were sampled.",
        ),
        click.option(
            "--compile-layers",
            is_flag=True,
            default=None,
            help="Compile the layers for training: slow start, then faster on a GPU.",
        ),
        click.option(
            "--offload-optimizer",
            is_flag=True,
            default=None,
            help="Keep the optimizer state in host memory.",
        ),
        click.option(
            "--optimizer-states",
            type=click.Choice(["float32", "8bit"]),
            help="Precision of the moments: 8 bytes per weight, or 2.  [default: float32]",
        ),
        click.option(
            "--reward-model",
            is_flag=True,
            default=None,
            help="A model that rates runs (hud train --loss bradley_terry) and answers no messages.",
        ),
        click.option(
            "--tool-format",
            "tool_call_parser",
            metavar="NAME",
            help="Format of tools and their calls, such as hermes or qwen3_coder.  [default: by its chat template]",
        ),
        click.option(
            "--lora-tower",
            is_flag=True,
            default=None,
            help="Train adapters in the vision tower, too.  [default: frozen]",
        ),
        click.option("--lora-targets", help="Layers with an adapter, comma-separated."),
        click.option("--lora-alpha", type=float, help="LoRA alpha.  [default: 32]"),
        click.option("--lora-rank", type=int, help="LoRA rank; without it, full fine-tuning."),
    ):
        function = option(function)
    return function


class Size(click.ParamType[int]):
    """Size of memory in bytes, such as 8GiB or 512MiB."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        size = parse_bytes(value)
        if size is None:
            self.fail(f"{value!r} is no size; write it as 8GiB or 512MiB.", param, ctx)
        return size


def sampling_options(function: Any) -> Any:
    """Options of a new model's sampler."""
    for option in (
        click.option(
            "--max-context",
            type=click.IntRange(1),
            metavar="TOKENS",
            help="Most tokens of one sequence.  [default: the model's context, as memory holds it]",
        ),
        click.option(
            "--slots",
            type=click.IntRange(1, SLOT_LIMIT),
            help="Most sequences sampled at a time.  [default: by memory]",
        ),
        click.option(
            "--kv-cache",
            "cache_bytes",
            type=Size(),
            metavar="SIZE",
            help="Key-value cache, such as 8GiB.  [default: what weights and training leave]",
        ),
    ):
        function = option(function)
    return function


def training_of(options: dict[str, Any]) -> dict[str, Any] | None:
    """Return the training configuration of the options; None without any."""
    if all(value is None for value in options.values()):
        return None
    training = {name: value for name, value in options.items() if value is not None}
    if "lora_targets" in training:
        training["lora_targets"] = [part.strip() for part in training["lora_targets"].split(",")]
    if set(training) <= BESIDE_TRAINING:
        return training  # No training options: a fork is trained like its base.
    lora = any(name.startswith("lora_") for name in training)
    return {"training": "lora" if lora else "full", **training}


def print_made(model: dict[str, Any], as_json: bool, verb: str, then: str | None = None) -> None:
    """Print a new model, and its next command: `then`, or the training command."""
    slug = model["model_name"]
    usage = training_usage(slug) if then is None else f"Next: {then}"
    if model.get("shows_tools") is False:
        click.echo(
            f"The chat template of {slug} shows no tools, so they are written into its system prompt, with calls in the format "
            f"{model['tool_format']} (--tool-format takes another).",
            err=as_json,
        )
    if model.get("path") not in (None, "packed"):
        click.echo(
            f"{slug} is computed one sequence at a time, by the layers and the state of its own class in transformers: exact, "
            "but many times slower than other models.",
            err=as_json,
        )
    tell(as_json, model, f"{verb} {slug} ({model['id']}).\n{usage}")


def unsaved_note(model: dict[str, Any]) -> str | None:
    """Return the sentence for steps of a training that no checkpoint holds; None without any."""
    steps = model.get("unsaved_steps", 0)
    if not steps:
        return None
    return (
        f"note: {count(steps, 'step')} of the training of {model['model_name']} {'is' if steps == 1 else 'are'} on disk, without a "
        "checkpoint: it runs, or was stopped. Its command continues it; the head is without them."
    )
