"""`hud models checkpoints | head | name | discard | export`: a model's checkpoints, and the one that serves."""

from __future__ import annotations

from pathlib import Path

import click

from hud.cli.models.options import as_json_option, unsaved_note
from hud.cli.output import console, print_json, tell, training_usage
from hud.cli.platform_requests import ask, model_path, run
from hud.input_files import read_input_text


@click.command()
@click.argument("slug")
@click.option(
    "--all", "everything", is_flag=True, help="Draw stretches of checkpoints without files, too."
)
@as_json_option
def checkpoints(slug: str, everything: bool, as_json: bool) -> None:
    """Draw the tree of a model's checkpoints, oldest first; ▶ is the head."""
    from hud.cli.models.tree import draw_tree

    model = ask("get", model_path(slug))
    nodes = ask("get", model_path(slug, "checkpoints"))
    if as_json:
        print_json(nodes)
        return
    # One call: each has the cost of a console.
    console().print("\n".join(draw_tree(model, nodes, everything=everything)), markup=False)
    if note := unsaved_note(model):
        console().print(note, markup=False)


@click.command()
@click.argument("slug")
@click.option(
    "--set", "target", metavar="ID", help="Move the head: an id, its start, a name, or base."
)
@as_json_option
def head(slug: str, target: str | None, as_json: bool) -> None:
    """Show the head, the checkpoint that serves, or move it."""
    if target is not None:
        moved = ask("put", model_path(slug, "head"), {"checkpoint_id": target})
        if moved["round_the_gate"]:
            cure = f" With evidence: hud models promote {slug} {target} --taskset TASKS"
            click.echo(
                f"Warning: this goes round the gate, through which the head of {slug} moves: nothing shows that {target} is "
                f"better.{'' if moved['checkpoint_id'] is None else cure}",
                err=True,
            )
    from hud.cli.models.tree import statistics_of

    nodes = ask("get", model_path(slug, "checkpoints"))
    model = ask("get", model_path(slug))
    active = next((node for node in nodes if node["is_active"]), None)
    if as_json:
        print_json({"model": model["model_name"], "head": active})
        return
    serves = "the weights it began with" if active is None else f"{active['name']} ({active['id']})"
    console().print(f"{model['model_name']} serves {serves}.", markup=False)
    if active is not None:
        for line in statistics_of(active, {node["id"]: node["name"] for node in nodes}):
            console().print(line, markup=False)
    if target is not None:
        usage = training_usage(model["model_name"])
        console().print(f"Training goes on from there. {usage}", markup=False)


@click.command()
@click.argument("slug")
@click.argument("checkpoint")
@click.argument("name")
@as_json_option
def name(slug: str, checkpoint: str, name: str, as_json: bool) -> None:
    """Name a checkpoint (an id, its start, a name, or head); the files of named ones are never deleted to save space."""
    path = model_path(slug, "checkpoints", checkpoint)
    named = ask("put", path, {"name": name})
    tell(as_json, named, f"Checkpoint {named['id']} of {slug} is named {named['name']}.")


@click.command()
@click.argument("slug")
@click.argument("checkpoint", default="head")
@click.option(
    "--add",
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Add a checkpoint with the head's weights and this file's text as its system prompt. The head does not move.",
)
@as_json_option
def prompt(slug: str, checkpoint: str, file: Path | None, as_json: bool) -> None:
    """Print the system prompt of a checkpoint (an id, its start, a name, or head), or add one to the tree."""
    if file is not None:
        node = ask("post", model_path(slug, "prompts"), {"text": read_input_text(file)})
        added = f"Added {node['name']} ({node['id']}). With evidence: hud models promote {slug} {node['name']} --taskset TASKS"
        tell(as_json, node, added)
        return
    model = ask("get", model_path(slug))
    text = None
    if checkpoint != "head" or model["head_checkpoint_id"] is not None:
        text = ask("get", model_path(slug, "checkpoints", checkpoint))["system_prompt"]
    nothing = f"{slug} has no system prompt of its own at {checkpoint}."
    tell(as_json, {"system_prompt": text}, nothing if text is None else text)


@click.command()
@click.argument("slug")
@as_json_option
def discard(slug: str, as_json: bool) -> None:
    """Discard a model's accumulated gradient."""
    from hud.train import TrainingClient

    dropped = run(TrainingClient(slug).discard())
    sentence = f"Discarded {dropped}." if dropped else f"Nothing is accumulated for {slug}."
    tell(as_json, {"discarded": dropped and dropped.model_dump()}, sentence)


@click.command()
@click.argument("slug")
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), required=True)
@click.option("--checkpoint", help="Another checkpoint than the head.")
@click.option(
    "--to",
    "form",
    metavar="FORM",
    default="hf",
    show_default=True,
    help="hf: a complete Hugging Face folder. peft: the adapter alone. gguf: one file for llama.cpp.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float16", "bfloat16"]),
    help="Type of a file's weights.  [default: that of the model]",
)
@click.option(
    "--push", metavar="OWNER/NAME", help="Upload it to a new repository of the Hugging Face hub."
)
@click.option("--public", is_flag=True, help="With --push: everyone may read the repository.")
@as_json_option
def export(
    slug: str,
    folder: Path,
    checkpoint: str | None,
    form: str,
    dtype: str | None,
    push: str | None,
    public: bool,
    as_json: bool,
) -> None:
    """Write a model with its card to a folder: complete and with an adapter merged, as one file, or the adapter alone."""
    if public and push is None:
        raise click.UsageError("--public goes with --push.")
    body = {
        "folder": str(folder.resolve()),
        "checkpoint_id": checkpoint,
        "form": form,
        "dtype": dtype,
        "push": push,
        "public": public,
    }
    done = ask("post", model_path(slug, "export"), body)
    reader = {"hf": "transformers", "peft": "peft", "gguf": "llama.cpp"}.get(form, form)
    sentence = f"Wrote {done['folder']}; {reader} loads it."
    if push is not None:
        sentence += f"\nUploaded it to {done['url']}."
    tell(as_json, done, sentence)
