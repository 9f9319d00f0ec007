"""Options that several commands of `hud models` share, and what they print of a new model."""

from __future__ import annotations

from typing import Any

import click

from hud.cli.output import tell, training_usage

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
runtime_option = click.option(
    "--runtime",
    default="local",
    show_default=True,
    help="local, fork, subprocess or tcp://HOST:PORT.",
)


def training_options(function: Any) -> Any:
    """Options that say how a new model will be trained."""
    for option in (
        click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default=None),
        click.option(
            "--recompute-layers",
            is_flag=True,
            default=None,
            help="Keep less of each training pass in memory, and compute it again for the gradient.",
        ),
        click.option(
            "--compile-layers",
            is_flag=True,
            default=None,
            help="Train with compiled layers: minutes of compilation, then faster on a GPU.",
        ),
        click.option(
            "--offload-optimizer",
            is_flag=True,
            default=None,
            help="Keep the optimizer's state in the host's memory, not the GPU's.",
        ),
        click.option(
            "--optimizer-states",
            type=click.Choice(["float32", "8bit"]),
            help="How moments are kept: 8 bytes for each weight, or 2.  [default: float32]",
        ),
        click.option(
            "--tool-call-parser",
            metavar="NAME",
            help="How it writes tool calls, such as hermes or qwen3_coder.  [default: as its chat template]",
        ),
        click.option("--lora-targets", help="Layers that get an adapter, comma-separated."),
        click.option("--lora-alpha", type=float, help="Strength of the adapter.  [default: 32]"),
        click.option(
            "--lora-rank", type=int, help="Train an adapter of this rank, not all weights."
        ),
    ):
        function = option(function)
    return function


def training_of(given: dict[str, Any]) -> dict[str, Any] | None:
    """Return the training configuration that the options describe; None where none was given."""
    if all(value is None for value in given.values()):
        return None
    found = {name: value for name, value in given.items() if value is not None}
    if "lora_targets" in found:
        found["lora_targets"] = [part.strip() for part in found["lora_targets"].split(",")]
    if set(found) == {"tool_call_parser"}:
        return found  # Nothing of the training: a fork is trained as its base is.
    lora = any(name.startswith("lora_") for name in found)
    return {"training": "lora" if lora else "full", **found}


def print_made(model: dict[str, Any], as_json: bool, verb: str, then: str | None = None) -> None:
    """Print a new model, and the command to use it: `then`, or how it is trained."""
    slug = model["model_name"]
    usage = training_usage(slug) if then is None else f"Next: {then}"
    tell(as_json, model, f"{verb} {slug} ({model['id']}).\n{usage}")
