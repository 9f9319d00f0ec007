"""`hud models`: the command group, with the commands that list and remove models."""

from __future__ import annotations

import click

from hud.cli.models.adding import add, fork
from hud.cli.models.checkpoints import checkpoints, discard, export, head, name, prompt
from hud.cli.models.comparison import compare, promote
from hud.cli.models.creation import create
from hud.cli.models.options import as_json_option, unsaved_note
from hud.cli.output import console, print_json, table, tell
from hud.cli.platform_requests import ask, model_path
from hud.cli.plugged_commands import ExtensibleGroup


@click.group(name="models", cls=ExtensibleGroup, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Models, their checkpoints and heads."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_models, as_json=False)


@command.command(name="list")
@as_json_option
def list_models(as_json: bool) -> None:
    """List every model, oldest first."""
    page = ask("get", "/v2/models")
    if as_json:
        print_json(page["items"])
        return
    if not page["items"]:
        console().print(
            "No models yet. Make one: hud models create SLUG --preset tiny --tasks TASKS"
        )
        return
    slugs = {model["id"]: model["model_name"] for model in page["items"]}
    shown = table("model", "kind", "trained", "head", "from", "created")
    for model in page["items"]:
        config = model["config"]
        trained = f"LoRA {config['lora_rank']}" if config["training"] == "lora" else "full"
        if not model["is_trainable"]:
            trained = "–"
        origin = slugs.get(model["base_model_id"]) or config["source"] or "–"
        head = (model["head_checkpoint_id"] or "base")[:8]
        created = model["created_at"][:16].replace("T", " ")
        shown.add_row(model["model_name"], model["kind"], trained, head, origin, created)
    console().print(shown)
    for note in filter(None, map(unsaved_note, page["items"])):
        console().print(note, markup=False)


@command.command()
@click.argument("slug")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@as_json_option
def rm(slug: str, yes: bool, as_json: bool) -> None:
    """Remove a model and its own files."""
    model = ask("get", model_path(slug))
    if not yes and not as_json:
        nodes = ask("get", model_path(slug, "checkpoints"))
        question = f"Remove {model['model_name']!r} and its {len(nodes)} checkpoints for good?"
        click.confirm(question, abort=True, err=True)
    ask("delete", f"/v2/models/{model['id']}")
    name = model["model_name"]
    tell(as_json, {"removed": name}, f"Removed {name}.")


for _command in (
    fork,
    add,
    create,
    checkpoints,
    head,
    name,
    prompt,
    discard,
    compare,
    promote,
    export,
):
    command.add_command(_command)
