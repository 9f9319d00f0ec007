"""The source `jsonl`: runs of trajectories.jsonl, equal to those that were exported."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from hud import exact_json
from hud.errors import UsageError
from hud.exchange.foreign_runs import ForeignJob, ForeignRun, JobStatus
from hud.exchange.ports import RunSource

_SAME = (
    *("group_id", "attempt", "slug", "model", "checkpoint", "status", "reward"),
    *("failure_kind", "error", "stop_reason", "grade", "extra"),
)
"""Fields of a line that a run has by the same names."""
_COUNTS = ("prompt_tokens", "completion_tokens", "cached_tokens", "turns", "cost_usd")
_MARKS = {"trace_id", "steps", "samples", "task_row"}
"""Fields of a line by which the format is recognized."""


def is_trajectories(path: Path) -> bool:
    """Return whether a file's first line is a run of this format."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        try:
            line = exact_json.loads(file.readline())
        except (exact_json.JSONDecodeError, UnicodeDecodeError):
            return False
    return isinstance(line, dict) and line.keys() >= _MARKS


def read_trajectories(path: Path) -> Iterator[ForeignRun]:
    """Yield the runs of a file; their pictures are in the folder next to it.

    Raises `UsageError` for a line in another form, and for a picture that is missing.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield _run(exact_json.loads(line), path.parent)
            except (exact_json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
                raise UsageError(
                    f"Line {number} of {path} is no run of trajectories.jsonl: {type(error).__name__}: {error}. "
                    "Export the job again: hud export JOB"
                ) from error


def _run(line: dict[str, Any], folder: Path) -> ForeignRun:
    files = _pictures(line, folder)
    samples = {sample["step_id"]: _sample(sample, files) for sample in line["samples"]}
    steps = []
    for step in line["steps"]:
        payload = _restored(step, folder)
        sample = samples.get(payload.get("step_id"))
        if sample is not None:
            payload = {**payload, "sample": {**payload.get("sample", {}), **sample}}
        steps.append(payload)
    return ForeignRun(
        foreign_id=line["trace_id"],
        job=None if line["job"] is None else _job(line["job_id"], line["job"]),
        source=line["origin"],
        task=line["task_row"],
        content=line["answer"],
        steps=steps,
        started_at=_time(line["started_at"]),
        ended_at=_time(line["ended_at"]),
        counts={name: line["usage"][name] for name in _COUNTS},
        **{name: line[name] for name in _SAME},
    )


def _job(job_id: str, job: dict[str, Any]) -> ForeignJob:
    status: JobStatus = "completed"
    if job["status"] in ("running", "interrupted"):
        status = job["status"]
    return ForeignJob(
        id=job_id,
        name=job["name"],
        purpose=job["purpose"],
        group_size=job["group_size"],
        benchmark=job["benchmark"],
        status=status,
        created_at=_time(job["created_at"]),
        ended_at=_time(job["ended_at"]),
    )


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _pictures(line: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return the files of a line's pictures as base64, by the SHA-256 of their bytes."""
    if not any(sample.get("pictures") for sample in line["samples"]):
        return {}
    contents = [_file(folder, picture["path"]) for picture in line["pictures"]]
    return {hashlib.sha256(data).hexdigest(): b64encode(data).decode() for data in contents}


def _sample(sample: dict[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """Return the sample of a step, with the files of its pictures."""
    tokens = {name: value for name, value in sample.items() if name != "step_id"}
    if not tokens.get("pictures"):
        return tokens
    missing = [picture for picture in tokens["pictures"] if picture["sha256"] not in files]
    if missing:
        raise UsageError(
            f"The file of a sampled picture (SHA-256 {missing[0]['sha256'][:16]}…) is not among the exported pictures. "
            "Export the job with `hud export`, which writes them."
        )
    return {
        **tokens,
        "pictures": [
            {**picture, "data": files[picture["sha256"]]} for picture in tokens["pictures"]
        ],
    }


def _restored(value: Any, folder: Path) -> Any:
    """Return a JSON value in which the paths of pictures are replaced by their base64 texts."""
    if isinstance(value, list):
        return [_restored(element, folder) for element in value]
    if not isinstance(value, dict):
        return value
    return {
        name: b64encode(_file(folder, inner["file"])).decode()
        if name == "data" and isinstance(inner, dict) and inner.keys() == {"file"}
        else _restored(inner, folder)
        for name, inner in value.items()
    }


def _file(folder: Path, path: str | None) -> bytes:
    """Return a picture's bytes. Raises `UsageError` where it is not below the folder."""
    if path is None:
        raise UsageError(
            "This file was exported without the pictures of its runs. Export the job with `hud export`, which writes them."
        )
    place = folder / path
    if not place.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"The picture {path} is outside of {folder}; the file was changed.")
    try:
        return place.read_bytes()
    except OSError as error:
        raise UsageError(
            f"The picture {place} cannot be read ({error.strerror}); keep the folder of pictures next to the file."
        ) from error


jsonl = RunSource(
    summary="trajectories.jsonl of `hud export`",
    recognizes=is_trajectories,
    read=read_trajectories,
)
