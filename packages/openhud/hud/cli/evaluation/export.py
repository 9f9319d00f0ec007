"""`hud export`: a job's runs, or tasks, in the formats of others."""

from __future__ import annotations

from pathlib import Path

import click

FORMS = {
    "jsonl": ("trajectories.jsonl", "runs of a job, a line each"),
    "hf": ("trajectories", "runs, as a folder that load_dataset of Hugging Face datasets reads"),
    "atif": ("trajectories", "runs, as trajectories of Harbor's format ATIF"),
    "inspect": ("job.eval", "runs, as an evaluation log of Inspect"),
    "otlp": ("traces.jsonl", "runs, as OpenTelemetry traces in the conventions for generative AI"),
    "harbor": ("harbor", "tasks, as task folders of Harbor"),
    "openrlhf": ("tasks.jsonl", "tasks, as the data set of OpenRLHF's agent executor"),
    "rft": ("rft", "tasks, as prompts and a grader of OpenAI's reinforcement fine-tuning"),
    "verl": ("tasks.parquet", "tasks, as the parquet file of verl's data set"),
}
"""Default output, and contents, of each form."""
OF_RUNS = ("jsonl", "hf", "atif", "inspect", "otlp")
FOLDERS = ("hf", "atif", "harbor", "rft")


@click.command(
    name="export",
    epilog="Forms: "
    + "; ".join(f"{form}: {contents}" for form, (_, contents) in FORMS.items())
    + ". The schema of jsonl: docs/trajectories.md; the others: docs/integrations.",
)
@click.argument("source", metavar="JOB|TASKS")
@click.option(
    "--to",
    "form",
    type=click.Choice(list(FORMS)),
    default="jsonl",
    show_default=True,
    help="The form.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The file, or the new folder (default: by the form).",
)
@click.option(
    "--endpoint",
    metavar="URL",
    help="With --to otlp: send the traces to this collector, http://HOST:4318, in place of a file.",
)
def command(source: str, form: str, output: Path | None, endpoint: str | None) -> None:
    """Write the runs of JOB (messages, token ids, logprobs, states, reward), or TASKS, in another format.

    With --to jsonl, pictures are in a folder next to the file, with the same name. TASKS are a .py, .json or .jsonl file, a
    folder, or the platform's taskset; what has no place in the format is named.
    """
    from hud.cli.platform_requests import run
    from hud.errors import UsageError

    target = output or Path(FORMS[form][0])
    if form in FOLDERS and target.exists():
        raise UsageError(f"{target} exists; name a new folder with -o.")
    if endpoint is not None and (form != "otlp" or output is not None):
        raise UsageError("--endpoint goes with --to otlp, and without -o.")
    if form in OF_RUNS:
        from hud.cli.evaluation import export_runs

        if endpoint is not None:
            run(export_runs.send_otlp(source, endpoint))
            return

        writers = {
            "jsonl": export_runs.write_lines,
            "hf": export_runs.write_dataset,
            "atif": export_runs.write_atif,
            "inspect": export_runs.write_eval_log,
            "otlp": export_runs.write_otlp,
        }
        run(writers[form](source, target))
    else:
        from hud.cli.evaluation.export_tasks import write_tasks

        write_tasks(source, form, target)
