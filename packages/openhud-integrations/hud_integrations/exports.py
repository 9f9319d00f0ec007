"""Formats of `hud export` and `hud import`; what each needs is imported when it is used: the packages here load their names lazily."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hud import exact_json
from hud.errors import PlatformError, UsageError
from hud.exchange import EnvironmentSource, LeftOut, RecordedRuns, RunExport, TaskExport, Written
from hud.exchange.partial_output import partial_output
from hud.exchange.trajectories import pictures_note, write_pictures
from hud.trace.trajectory_export import trajectory_line
from hud_integrations import harbor as harbor_tasks
from hud_integrations import rft as rft_tasks
from hud_integrations import verl as verl_tasks

if TYPE_CHECKING:
    from hud.eval import Taskset


async def _write_dataset(runs: RecordedRuns, output: Path) -> Written:
    from hud_integrations.datasets import PICTURES, DatasetFolder

    pictures = 0
    with partial_output(output) as partial:
        dataset = DatasetFolder(partial)
        async for run, trace in runs:
            pictures += write_pictures(trace, partial / PICTURES)
            line = trajectory_line(run, trace, runs.job, pictures=PICTURES)
            dataset.add(exact_json.loads(line))
        dataset.close(runs.job)
    note = f'In Python: datasets.load_dataset("{output}")'
    return Written(dataset.rows, (*pictures_note(pictures, output / PICTURES), note))


async def _write_atif(runs: RecordedRuns, output: Path) -> Written:
    """Write `TRACE/trajectory.json` for each run, as Harbor has it."""
    from hud_integrations.harbor import atif_trajectory

    written = 0
    with partial_output(output) as partial:
        partial.mkdir(parents=True)
        async for run, trace in runs:
            folder = partial / Path(run["trace_id"]).name
            folder.mkdir()
            document = atif_trajectory(run, trace)
            content = exact_json.dumps(document, option=exact_json.OPT_INDENT_2)
            (folder / "trajectory.json").write_bytes(content)
            written += 1
    return Written(written)


async def _write_eval_log(runs: RecordedRuns, output: Path) -> Written:
    """Write the runs as one log of Inspect."""
    if find_spec("inspect_ai") is None:
        raise UsageError("Writing logs of Inspect needs its package: pip install inspect-ai.")
    if output.suffix != ".eval":
        raise UsageError(f"Logs of Inspect are named NAME.eval, not {output.name}.")
    from hud_integrations.inspect import EvalLogFile

    log = EvalLogFile(output)
    async for run, trace in runs:
        log.add(run, trace)
    return Written(log.close(runs.job))


async def _write_otlp(runs: RecordedRuns, output: Path) -> Written:
    """Write one export request of OTLP for each run, a line each."""
    from hud_integrations.otlp import otlp_traces

    written = 0
    with partial_output(output) as partial, partial.open("wb") as file:
        async for run, trace in runs:
            line = exact_json.dumps(otlp_traces(run, trace), option=exact_json.OPT_APPEND_NEWLINE)
            file.write(line)
            written += 1
    return Written(written)


async def _send_otlp(runs: RecordedRuns, address: str) -> Written:
    """Send one export request of OTLP for each run to a collector."""
    import httpx

    from hud_integrations.otlp import otlp_traces

    url = f"{address.rstrip('/')}/v1/traces"
    sent = 0
    try:
        async with httpx.AsyncClient(timeout=30.0) as client:
            async for run, trace in runs:
                response = await client.post(url, json=otlp_traces(run, trace))
                response.raise_for_status()
                sent += 1
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PlatformError(
            f"The collector at {url} took {sent} runs, and then failed: {error}. Give --endpoint its address for OTLP over HTTP."
        ) from error
    return Written(sent)


def _write_openrlhf(tasks: Taskset, output: Path) -> tuple[int, list[LeftOut]]:
    from hud_integrations.openrlhf import write_rows

    return write_rows(tasks, output)


def _is_harbor(folder: Path) -> bool:
    from hud_integrations.harbor.task_folder import holds_tasks

    return holds_tasks(folder)


hf = RunExport(
    summary="runs, as a folder that load_dataset of Hugging Face datasets reads",
    output="trajectories",
    write=_write_dataset,
    folder=True,
)
atif = RunExport(
    summary="runs, as trajectories of Harbor's format ATIF",
    output="trajectories",
    write=_write_atif,
    folder=True,
)
inspect = RunExport(
    summary="runs, as an evaluation log of Inspect",
    output="job.eval",
    write=_write_eval_log,
)
otlp = RunExport(
    summary="runs, as OpenTelemetry traces in the conventions for generative AI",
    output="traces.jsonl",
    write=_write_otlp,
    send=_send_otlp,
)
harbor = TaskExport(
    summary="tasks, as task folders of Harbor",
    output="harbor",
    write=lambda tasks, output: harbor_tasks.export_tasks(tasks, output),
    folder=True,
)
openrlhf = TaskExport(
    summary="tasks, as the data set of OpenRLHF's agent executor",
    output="tasks.jsonl",
    write=_write_openrlhf,
)
rft = TaskExport(
    summary="tasks, as prompts and a grader of OpenAI's reinforcement fine-tuning",
    output="rft",
    write=lambda tasks, output: rft_tasks.export_tasks(tasks, output),
    folder=True,
)
verl = TaskExport(
    summary="tasks, as the parquet file of verl's data set",
    output="tasks.parquet",
    write=lambda tasks, output: verl_tasks.write_parquet(tasks, output),
)
harbor_source = EnvironmentSource(
    summary="a folder with task folders of Harbor, or one of them",
    recognizes=_is_harbor,
    import_folder=lambda source, output: harbor_tasks.import_folder(source, output),
)
