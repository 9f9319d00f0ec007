"""`hud models`: which models there are, what they learned, and which of their checkpoints serves.

It reads the command line and asks the platform through `hud.client`; drawing the tree is its only own work.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import click

from hud.cli import models_vllm
from hud.cli.output import console, print_json, table
from hud.errors import ConflictError, NotFoundError, PlatformError
from hud.eval.results.intervals import with_interval

T = TypeVar("T")

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


@click.group(name="models", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Models, their checkpoints and heads."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_models, as_json=False)


command.add_command(models_vllm.command)


@command.command(name="list")
@as_json_option
def list_models(as_json: bool) -> None:
    """List every model, oldest first."""
    found = _ask("get", "/v2/models")
    if as_json:
        print_json(found["items"])
        return
    if not found["items"]:
        console().print(
            "No models yet. Make one: hud models create SLUG --preset tiny --tasks TASKS"
        )
        return
    slugs = {model["id"]: model["model_name"] for model in found["items"]}
    shown = table("model", "kind", "trained", "head", "from", "created")
    for model in found["items"]:
        config = model["config"]
        trained = f"LoRA {config['lora_rank']}" if config["training"] == "lora" else "full"
        if not model["is_trainable"]:
            trained = "–"
        origin = slugs.get(model["base_model_id"]) or config["source"] or "–"
        head = (model["head_checkpoint_id"] or "base")[:8]
        created = model["created_at"][:16].replace("T", " ")
        shown.add_row(model["model_name"], model["kind"], trained, head, origin, created)
    console().print(shown)


@command.command()
@click.argument("base")
@click.option("--name", required=True, help="Slug of the fork.")
@training_options
@as_json_option
def fork(base: str, name: str, as_json: bool, **training: Any) -> None:
    """Begin a model at the head of BASE; its files are shared, not copied.

    BASE is a model, or a Hugging Face folder or hub id (OWNER/NAME), which is added first where it is not there yet.
    """
    body = {"source_model_id": base, "name": name, "config": _training(training)}
    try:
        made = _ask("post", "/v2/models/fork", body)
    except NotFoundError:
        folder = Path(base).expanduser()
        if not folder.is_dir() and "/" not in base:
            raise
        source = str(folder.resolve()) if folder.is_dir() else base
        known = _ask("get", "/v2/models")["items"]
        added = [model["id"] for model in known if model["config"]["source"] == source]
        body["source_model_id"] = added[0] if added else _add_base(source)
        made = _ask("post", "/v2/models/fork", body)
    _made(made, as_json, "Forked")


def _add_base(source: str) -> str:
    """Add a folder or hub id as a model that is named for it; return its id."""
    is_folder = Path(source).is_dir()
    name = Path(source).name if is_folder else source
    verb = "Adding" if is_folder else "Fetching from the Hugging Face hub, and adding"
    # What is fetched shows its own progress, on stderr like this.
    click.echo(f"{source} is no model here yet. {verb} it as {name!r}.", err=True)
    try:
        made = _ask("post", "/v2/models/add", {"source": source, "name": name})
    except ConflictError as error:
        raise ConflictError(
            f"{error} Or add {source} under a name of its own: hud models add {source} --name NAME"
        ) from error
    except PlatformError as error:
        if error.status != 403:
            raise
        raise PlatformError(
            f"{error} Ask an admin of the platform for: hud models add {source} --name {name}", 403
        ) from error
    click.echo(f"Added {made['model_name']}.", err=True)
    return str(made["id"])


@command.command()
@click.argument("source")
@click.option("--name", help="Slug of the model.")
@click.option("--url", help="Ask a provider at this URL; SOURCE is then the model's name.")
@click.option(
    "--dialect", type=click.Choice(["openai", "anthropic", "gemini"]), help="What it speaks."
)
@click.option("--key-env", help="Environment variable of the server with the provider's key.")
@click.option("--upstream-model", help="What the provider calls the model.")
@click.option("--price-in", type=float, help="Dollars for a million prompt tokens.")
@click.option("--price-out", type=float, help="Dollars for a million completion tokens.")
@training_options
@as_json_option
def add(
    source: str,
    name: str | None,
    url: str | None,
    dialect: str | None,
    key_env: str | None,
    upstream_model: str | None,
    price_in: float | None,
    price_out: float | None,
    as_json: bool,
    **training: Any,
) -> None:
    """Register the model in a Hugging Face folder, one of the hub by its id, or one of a provider by its URL."""
    provider = {
        "dialect": dialect,
        "key_env": key_env,
        "upstream_model": upstream_model,
        "price_in": price_in,
        "price_out": price_out,
    }
    given = {option: value for option, value in provider.items() if value is not None}
    config = _training(training)
    if url is None:
        if given:
            raise click.UsageError(f"--{min(given).replace('_', '-')} goes with --url.")
        if name is None:
            raise click.UsageError("Missing option '--name'.")
        body: dict[str, Any] = {"source": source, "name": name, "config": config}
        _made(_ask("post", "/v2/models/add", body), as_json, "Added")
        return
    if config is not None:
        raise click.UsageError(
            "A provider's model is not trained here; leave training options out."
        )
    if name is not None:
        given.setdefault("upstream_model", source)
    body = {"name": name or source, "provider": {"url": url, **given}}
    made = _ask("post", "/v2/models/provide", body)
    _made(made, as_json, "Added", f"hud eval TASKS {made['model_name']}")


@command.command()
@click.argument("slug")
@click.option("--preset", type=click.Choice(["tiny"]), default="tiny", show_default=True)
@click.option(
    "--tasks",
    metavar="TASKS",
    type=click.Path(path_type=Path),
    required=True,
    help="Tasks whose text its tokenizer is learned from.",
)
@click.option(
    "--from-job",
    help="Learn the words of this job's runs, too; `latest`: the newest in which another agent earned something.",
)
@click.option("--vocab-size", type=int, help="Most tokens.  [default: 1024]")
@click.option("--hidden", type=int, help="Width.  [default: 128]")
@click.option("--layers", type=int, help="Depth.  [default: 4]")
@click.option("--max-context", type=int, help="Most tokens of a conversation.  [default: 1024]")
@click.option("--seed", type=int, default=0, show_default=True)
@runtime_option
@training_options
@as_json_option
def create(
    slug: str,
    preset: str,
    tasks: Path,
    from_job: str | None,
    seed: int,
    runtime: str,
    as_json: bool,
    vocab_size: int | None,
    hidden: int | None,
    layers: int | None,
    max_context: int | None,
    **training: Any,
) -> None:
    """Make a small random model whose tokenizer is learned from the text of a taskset."""
    sizes = {
        "vocab_size": vocab_size,
        "hidden": hidden,
        "layers": layers,
        "max_context": max_context,
    }
    body = {
        "name": slug,
        "preset": preset,
        "seed": seed,
        "sizes": {name: value for name, value in sizes.items() if value is not None},
        "config": _training(training),
    }
    made, commands = asyncio.run(_create(body, tasks, from_job, runtime))
    if as_json:
        print_json(made)
        return
    out = console()
    out.print(
        f"Made {made['model_name']} ({made['id']}).\nIts weights are random: it has to learn from recorded runs before it can "
        "learn by reward.",
        markup=False,
    )
    for word, line in zip(("Next:", *["Then:"] * len(commands)), commands, strict=False):
        out.print(f"{word} {line}", markup=False, soft_wrap=True)


@command.command()
@click.argument("slug")
@click.option(
    "--all", "everything", is_flag=True, help="Draw stretches of checkpoints without files, too."
)
@as_json_option
def checkpoints(slug: str, everything: bool, as_json: bool) -> None:
    """Draw the tree of a model's checkpoints, oldest first; ▶ is the head."""
    from hud.cli.models.tree import draw_tree

    model = _ask("get", f"/v2/models/{slug}")
    nodes = _ask("get", f"/v2/models/{slug}/checkpoints")
    if as_json:
        print_json(nodes)
        return
    for line in draw_tree(model, nodes, everything=everything):
        console().print(line, markup=False)


@command.command()
@click.argument("slug")
@click.option(
    "--set", "target", metavar="ID", help="Move the head: an id, its start, a name, or base."
)
@as_json_option
def head(slug: str, target: str | None, as_json: bool) -> None:
    """Show the checkpoint that serves, or make another one serve."""
    if target is not None:
        _ask("put", f"/v2/models/{slug}/head", {"checkpoint_id": target})
    from hud.cli.models.tree import statistics_of

    nodes = _ask("get", f"/v2/models/{slug}/checkpoints")
    model = _ask("get", f"/v2/models/{slug}")
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
        console().print(f"Training goes on from there: hud train {model['model_name']} TASKS")


@command.command()
@click.argument("slug")
@click.argument("checkpoint")
@click.argument("name")
@as_json_option
def name(slug: str, checkpoint: str, name: str, as_json: bool) -> None:
    """Name a checkpoint (an id, its start, a name, or head); the files of named ones are never deleted to save space."""
    path = f"/v2/models/{quote(slug, safe='')}/checkpoints/{quote(checkpoint, safe='')}"
    named = _ask("put", path, {"name": name})
    if as_json:
        print_json(named)
        return
    console().print(f"Checkpoint {named['id']} of {slug} is named {named['name']}.", markup=False)


@command.command()
@click.argument("slug")
@as_json_option
def discard(slug: str, as_json: bool) -> None:
    """Throw away a gradient that was accumulated for a model and never applied."""
    from hud.train import TrainingClient

    dropped = _run(TrainingClient(slug).discard())
    if as_json:
        print_json({"discarded": None if dropped is None else dropped.model_dump()})
        return
    said = f"Discarded {dropped}." if dropped else f"Nothing is accumulated for {slug}."
    console().print(said, markup=False)


@command.command()
@click.argument("slug")
@click.argument("first")
@click.argument("second")
@click.option(
    "--tasks",
    metavar="TASKS",
    type=click.Path(path_type=Path),
    required=True,
    help="Tasks to play.",
)
@click.option(
    "--group", type=click.IntRange(min=1), default=1, show_default=True, help="Runs of each."
)
@click.option("--max-turns", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--max-tokens", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@runtime_option
@as_json_option
def compare(
    slug: str,
    first: str,
    second: str,
    tasks: Path,
    group: int,
    max_turns: int,
    max_tokens: int,
    seed: int,
    runtime: str,
    as_json: bool,
) -> None:
    """Play the same tasks with two checkpoints (ids, names, head or base) and tell which is better."""
    from dataclasses import asdict

    from hud.eval import Taskset
    from hud.train.config import make_config
    from hud.train.monitoring.comparison import compare as compare_checkpoints
    from hud.train.rollouts.runtimes import runtime_named

    values = {"model": slug, "eval_group": group, "max_turns": max_turns, "max_tokens": max_tokens}
    config = make_config({**values, "seed": seed})
    taskset = Taskset.from_file(tasks)
    where = runtime_named(runtime, list(taskset))
    found = asyncio.run(compare_checkpoints(config, first, second, taskset, runtime=where))
    if as_json:
        print_json({**asdict(found), "verdict": found.verdict})
        return
    shown = table("checkpoint", "mean reward, 95% interval")
    rows = (
        (first, found.first_score),
        (second, found.second_score),
        ("difference", found.difference),
    )
    for name, score in rows:
        signed = name == "difference"
        shown.add_row(name, with_interval(score.mean, score.low, score.high, signed=signed))
    console().print(shown)
    console().print(f"On {found.tasks} tasks: {found.verdict}.", markup=False)


@command.command()
@click.argument("slug")
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), required=True)
@click.option("--checkpoint", help="Another checkpoint than the head.")
@as_json_option
def export(slug: str, folder: Path, checkpoint: str | None, as_json: bool) -> None:
    """Write a model as a Hugging Face folder; an adapter is merged into the weights."""
    body = {"folder": str(folder.resolve()), "checkpoint_id": checkpoint}
    done = _ask("post", f"/v2/models/{slug}/export", body)
    if as_json:
        print_json(done)
        return
    console().print(f"Wrote {done['folder']}; transformers loads it.", markup=False)


@command.command()
@click.argument("slug")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@as_json_option
def rm(slug: str, yes: bool, as_json: bool) -> None:
    """Remove a model and the files that are its own."""
    model = _ask("get", f"/v2/models/{slug}")
    if not yes and not as_json:
        nodes = _ask("get", f"/v2/models/{slug}/checkpoints")
        question = f"Remove {model['model_name']!r} and its {len(nodes)} checkpoints for good?"
        click.confirm(question, abort=True, err=True)
    _ask("delete", f"/v2/models/{model['id']}")
    if as_json:
        print_json({"removed": model["model_name"]})
        return
    console().print(f"Removed {model['model_name']}.", markup=False)


def _ask(method: str, path: str, body: Any = None) -> Any:
    """Make one request of the platform."""
    from hud.client import connect

    async def ask() -> Any:
        call = getattr(connect(), method)
        return await (call(path) if body is None else call(path, body))

    return _run(ask())


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns; a program that has an event loop of its own may call the command."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


async def _create(
    body: dict[str, Any], source: Path, job: str | None, runtime: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the model, and the commands that train it from here."""
    from hud.client import connect
    from hud.eval import Taskset
    from hud.train.rollouts.runtimes import runtime_named
    from hud.train.supervised.corpus import texts_of, texts_of_job
    from hud.train.supervised.demonstrations import job_of, warm_up_commands

    tasks = Taskset.from_file(source)
    texts = await texts_of(tasks, runtime=runtime_named(runtime, list(tasks)))
    if job is not None:
        texts += await texts_of_job(connect(), await job_of(connect(), job, tasks))
    made = await connect().post("/v2/models/create", {**body, "texts": texts})
    commands = await warm_up_commands(connect(), made, str(source), tasks)
    return made, [*commands, f"hud train {made['model_name']} {shlex.quote(str(source))}"]


def _training(given: dict[str, Any]) -> dict[str, Any] | None:
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


def _made(model: dict[str, Any], as_json: bool, verb: str, then: str | None = None) -> None:
    if as_json:
        print_json(model)
        return
    slug = model["model_name"]
    console().print(f"{verb} {slug} ({model['id']}).", markup=False)
    console().print(f"Next: {then or f'hud train {slug} TASKS'}", markup=False)
