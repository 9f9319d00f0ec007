"""Writers of `hud export` for a job's runs: trajectories.jsonl, a dataset's folder, ATIF trajectories."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any


async def write_lines(reference: str, output: Path) -> None:
    from hud.cli.platform_requests import recorded_job
    from hud.errors import UsageError
    from hud.trace.trajectory_export import trajectory_line

    job = await recorded_job(reference)
    written = shown = 0
    beside = output.with_name(f"{output.stem}.pictures")
    # Written to a temporary file and renamed, so that no partial file is visible.
    partial = output.with_name(output.name + ".partial")
    try:
        with partial.open("wb") as file:
            async for run_row, trace in _runs(job["id"]):
                shown += _write_pictures(trace, beside)
                file.write(trajectory_line(run_row, trace, pictures=beside.name))
                written += 1
        partial.replace(output)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
    finally:
        partial.unlink(missing_ok=True)
    _say(written, job, output, shown, beside)


async def write_dataset(reference: str, output: Path) -> None:
    from hud import exact_json
    from hud.cli.output import console
    from hud.cli.platform_requests import recorded_job
    from hud.errors import UsageError
    from hud.integrations.datasets import PICTURES, DatasetFolder
    from hud.trace.trajectory_export import trajectory_line

    job = await recorded_job(reference)
    shown = 0
    partial = output.with_name(output.name + ".partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        dataset = DatasetFolder(partial)
        async for run_row, trace in _runs(job["id"]):
            shown += _write_pictures(trace, partial / PICTURES)
            dataset.add(exact_json.loads(trajectory_line(run_row, trace, pictures=PICTURES)))
        dataset.close(job)
        partial.replace(output)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _say(dataset.rows, job, output, shown, output / PICTURES)
    console().print(f'In Python: datasets.load_dataset("{output}")')


async def write_atif(reference: str, output: Path) -> None:
    """Write `TRACE/trajectory.json` for each run, as Harbor has it."""
    from hud import exact_json
    from hud.cli.output import console, count
    from hud.cli.platform_requests import recorded_job
    from hud.errors import UsageError
    from hud.integrations.harbor import atif_trajectory

    job = await recorded_job(reference)
    written = 0
    try:
        async for run_row, trace in _runs(job["id"]):
            folder = output / Path(run_row["trace_id"]).name
            folder.mkdir(parents=True)
            content = exact_json.dumps(
                atif_trajectory(run_row, trace), option=exact_json.OPT_INDENT_2
            )
            (folder / "trajectory.json").write_bytes(content)
            written += 1
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
    console().print(f"{count(written, 'run')} of {job['name']} written to {output}")


async def write_eval_log(reference: str, output: Path) -> None:
    """Write the runs as one log of Inspect."""
    from importlib.util import find_spec

    from hud.cli.output import console, count
    from hud.cli.platform_requests import recorded_job
    from hud.errors import UsageError
    from hud.integrations.inspect import EvalLogFile

    if find_spec("inspect_ai") is None:
        raise UsageError("Writing logs of Inspect needs its package: pip install inspect-ai.")
    if output.suffix != ".eval":
        raise UsageError(f"Logs of Inspect are named NAME.eval, not {output.name}.")
    job = await recorded_job(reference)
    log = EvalLogFile(output)
    try:
        async for run_row, trace in _runs(job["id"]):
            log.add(run_row, trace)
        written = log.close(job)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
    console().print(f"{count(written, 'run')} of {job['name']} written to {output}")


async def write_otlp(reference: str, output: Path) -> None:
    """Write one export request of OTLP for each run, a line each."""
    from hud import exact_json
    from hud.cli.output import console, count
    from hud.cli.platform_requests import recorded_job
    from hud.errors import UsageError
    from hud.integrations.otlp import otlp_traces

    job = await recorded_job(reference)
    written = 0
    try:
        with output.open("wb") as file:
            async for run_row, trace in _runs(job["id"]):
                line = otlp_traces(run_row, trace)
                file.write(exact_json.dumps(line, option=exact_json.OPT_APPEND_NEWLINE))
                written += 1
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
    console().print(f"{count(written, 'run')} of {job['name']} written to {output}")


async def send_otlp(reference: str, endpoint: str) -> None:
    """Send one export request of OTLP for each run to a collector."""
    import httpx

    from hud.cli.output import console, count
    from hud.cli.platform_requests import recorded_job
    from hud.errors import PlatformError
    from hud.integrations.otlp import otlp_traces

    job = await recorded_job(reference)
    url = f"{endpoint.rstrip('/')}/v1/traces"
    sent = 0
    try:
        async with httpx.AsyncClient(timeout=30.0) as client:
            async for run_row, trace in _runs(job["id"]):
                response = await client.post(url, json=otlp_traces(run_row, trace))
                response.raise_for_status()
                sent += 1
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PlatformError(
            f"The collector at {url} took {sent} runs, and then failed: {error}. Give --endpoint its address for OTLP over HTTP."
        ) from error
    console().print(f"{count(sent, 'run')} of {job['name']} sent to {url}")


async def _runs(job_id: str) -> AsyncIterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the record and the trace of each run."""
    from hud.cli.platform_requests import pages
    from hud.client import connect

    async for run in pages(f"/v2/jobs/{job_id}/traces"):
        recorded = await connect().get(f"/v2/trace/{run['id']}/full")
        yield recorded["run"], recorded["trace"]


def _write_pictures(trace: dict[str, Any], folder: Path) -> int:
    """Write the pictures of a trace, and return their number."""
    from hud.trace.trajectory_export import pictures_of

    found = pictures_of(trace)
    for picture in found:
        place = folder / picture.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(picture.data)
    return len(found)


def _say(written: int, job: dict[str, Any], output: Path, shown: int, pictures: Path) -> None:
    from hud.cli.output import console, count

    console().print(f"{count(written, 'run')} of {job['name']} written to {output}")
    if shown:
        console().print(f"{count(shown, 'picture')} written to {pictures}")
