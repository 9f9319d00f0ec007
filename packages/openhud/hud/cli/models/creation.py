"""`hud models create`: small random models."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Any

import click

from hud.cli.models.options import as_json_option, runtime_option, training_of, training_options
from hud.cli.output import console, print_json


@click.command()
@click.argument("slug")
@click.option("--preset", type=click.Choice(["tiny"]), default="tiny", show_default=True)
@click.option(
    "--tasks",
    metavar="TASKS",
    type=click.Path(path_type=Path),
    required=True,
    help="Tasks with the text for its tokenizer.",
)
@click.option(
    "--from-job",
    help="Also use the text of this job's runs; `latest`: the newest job with rewards above 0 by another agent.",
)
@click.option("--vocab-size", type=int, help="Maximum vocabulary.  [default: 1024]")
@click.option("--hidden", type=int, help="Width.  [default: 128]")
@click.option("--layers", type=int, help="Depth.  [default: 4]")
@click.option("--max-context", type=int, help="Context length in tokens.  [default: 1024]")
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
    """Create a small random model, with a tokenizer trained on the text of a taskset."""
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
        "config": training_of(training),
    }
    made, commands = asyncio.run(_create(body, tasks, from_job, runtime))
    if as_json:
        print_json(made)
        return
    out = console()
    out.print(
        f"Made {made['model_name']} ({made['id']}).\nIts weights are random: it has to learn from recorded runs before "
        "it can learn\nby reward.",
        markup=False,
    )
    for word, line in zip(("Next:", *["Then:"] * len(commands)), commands, strict=False):
        out.print(f"{word} {line}", markup=False, soft_wrap=True)


async def _create(
    body: dict[str, Any], source: Path, job: str | None, runtime: str
) -> tuple[dict[str, Any], list[str]]:
    """Return the model, and the commands to train it."""
    from hud.client import connect
    from hud.eval import Taskset
    from hud.train.rollouts.runtimes import training_runtime
    from hud.train.supervised.corpus import texts_of, texts_of_job
    from hud.train.supervised.demonstrations import job_of, warm_up_commands

    tasks = Taskset.from_file(source)
    texts = await texts_of(tasks, runtime=training_runtime(runtime, list(tasks)))
    if job is not None:
        texts += await texts_of_job(connect(), await job_of(connect(), job, tasks))
    made = await connect().post("/v2/models/create", {**body, "texts": texts})
    commands = await warm_up_commands(connect(), made, str(source), tasks)
    return made, [*commands, f"hud train {made['model_name']} {shlex.quote(str(source))}"]
