"""Pages of training: the runs, one run with its curves, stopping and resuming. `train_launch` starts one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import Response

from hud import exact_json
from hud.errors import NotFoundError
from hud.eval.results.held_out_scores import scores_of
from hud.processes.presence import is_gone
from hud.train.monitoring.alarms import Bands, alarms
from hud.train.monitoring.evaluations import evaluation_lines
from hud.train.monitoring.guard import guard_record
from hud_dashboard.events import Following, Revision
from hud_dashboard.launching.launch_request import Launching
from hud_dashboard.launching.launcher import Launch
from hud_dashboard.page import Data, LaunchingPart, Offset, Pages, Sent, paged, see
from hud_dashboard.pages.train_curves import (
    CAPTIONS,
    MOST_OVERLAID,
    charts,
    curve,
    overlaid,
)
from hud_dashboard.pages.train_form import changed
from hud_dashboard.pages.train_steps import step_rows
from hud_platform.training.training_jobs import TrainingJobs

router = Pages()
PER_PAGE = 50
RECENT_STEPS = 8
MOST_OTHERS = 50
_Runs = Annotated[Sequence[str], Query(alias="with")]
"""Ids of other training runs."""
OVER = ("finished", "stopped", "paused", "interrupted", "failed")


@router.page("/train", "train.html", csv=True)
def training(launching: LaunchingPart, offset: Offset = 0) -> Data:
    """The training runs, newest first, and launches without a run so far."""
    rows, total = launching.runs.page(None, PER_PAGE, offset)
    slugs = {model.id: model.slug for model in launching.registry.models()}
    items = [_row(launching, run, slugs) for run in rows]
    launches = [launch_shown(launch) for launch in launching.of_team() if _apart(launch)]
    return {
        "items": items,
        "launches": launches,
        **paged(total, PER_PAGE, offset),
        "revision": _all_revision(launching).value,
    }


@router.events("/events/train")
def training_events(launching: LaunchingPart) -> Following:
    """Event stream of the team's runs and launches."""
    return ("train", launching.who.team_id), lambda: _all_revision(launching)


@router.page("/train/launches/{launch_id}", "train_launch.html")
def launch(request: Request, launching: LaunchingPart, launch_id: str) -> Response | Data:
    """A launch; once its run is open, a redirect to the run."""
    launch_record = launching.launches.find(launching.who.team_id, launch_id)
    if launch_record.kind == "training" and launch_record.run_id is not None:
        place = f"/train/{launch_record.run_id}"
        # For a fragment of a page, the browser would follow a redirect and insert the run's page into this one.
        if request.headers.get("hx-request"):
            return Response(headers={"hx-redirect": place})
        return see(place)
    return {"launch": launch_shown(launch_record)}


@router.events("/events/train/launches/{launch_id}")
def launch_events(launching: LaunchingPart, launch_id: str) -> Following:
    """Event stream of a launch."""
    launch_record = launching.launches.find(launching.who.team_id, launch_id)

    def read() -> Revision:
        return Revision(str(launch_record.revision), over=launch_record.over)

    return ("launch", launch_record.id), read


@router.post("/train/launches/{launch_id}/stop")
async def stop_launch(launching: LaunchingPart, launch_id: str) -> Response:
    """Stop a launch; needs the same scope as launching it."""
    launching.who.require("run")
    launch_record = launching.launches.find(launching.who.team_id, launch_id)
    if launch_record.kind == "training":
        launching.who.require("train")
    launching.launches.stop(launch_record)
    return see(f"/train/launches/{launch_record.id}")


@router.page("/train/{run_id}", "train_run.html")
def run(launching: LaunchingPart, run_id: str, beside: _Runs = ()) -> Data:
    """One training run; its charts overlay the runs in `with`."""
    runs = launching.runs
    row = runs.get(run_id)
    history = runs.steps(row["id"])
    scores = scores_of(row["state"])
    model = _model(launching, row["model_id"])
    own_launch = launching.of_run(row["id"])
    drawn, quiet = charts(history, scores)
    others = _others(launching, row)
    shown = _row(launching, row, {row["model_id"]: model["slug"]}) | {
        "metrics": history[-1]["metrics"] if history else {}
    }
    return {
        "run": shown,
        "model": model,
        "launch": None if own_launch is None or own_launch.over else launch_shown(own_launch),
        "error": row["state"].get("error") if shown["status"] not in ("running",) else None,
        "scores": [asdict(score) for score in scores],
        "rungs": row["state"].get("rungs") or [],
        "verdict": (row["state"].get("report") or {}).get("verdict"),
        "evaluations": evaluation_lines(history, scores),
        "best": max(
            map(asdict, scores), key=lambda score: (score["mean"], score["step"]), default=None
        ),
        "guard": asdict(guard_record(row["state"])),
        "alarms": [asdict(alarm) for alarm in alarms(history, scores, Bands.of(row["config"]))],
        "config": changed(row["config"]),
        "captions": CAPTIONS,
        "charts": drawn,
        "quiet": quiet,
        "overlaid": [other for other in others if other["id"] in beside],
        "others": [other for other in others if other["id"] not in beside],
        "jobs": TrainingJobs(launching.registry.store, launching.who.team_id).shown(row),
        "recent": step_rows(history[: -RECENT_STEPS - 1 : -1]),
        "why_not_resumed": _why_not_resumed(launching, row, shown["status"]),
        "revision": _revision(launching, row["id"]).value,
    }


@router.get("/train/{run_id}/curves/{name}.json")
def curves(launching: LaunchingPart, run_id: str, name: str, beside: _Runs = ()) -> Response:
    """The data of one chart of a run, with overlaid runs."""
    if name not in CAPTIONS:
        raise NotFoundError(f"There is no curve {name!r}; there are {', '.join(CAPTIONS)}.")
    runs = launching.runs
    row = runs.get(run_id)
    data = curve(name, runs.steps(row["id"]), scores_of(row["state"]))
    rows_by_id = {other_row["id"]: other_row for other_row in _others(launching, row)}
    others = {}
    for other_row in [runs.get(other) for other in list(dict.fromkeys(beside))[:MOST_OVERLAID]]:
        if other_row["id"] != row["id"]:
            called = (
                rows_by_id[other_row["id"]]["name"]
                if other_row["id"] in rows_by_id
                else other_row["id"][:8]
            )
            others[called] = curve(name, runs.steps(other_row["id"]), scores_of(other_row["state"]))
    if others:
        data = overlaid(data, others)
    return Response(exact_json.dumps(data), media_type="application/json")


@router.events("/events/train/{run_id}")
def run_events(launching: LaunchingPart, run_id: str) -> Following:
    """Event stream of a run."""
    row_id = launching.runs.get(run_id)["id"]
    return ("train", launching.who.team_id, row_id), lambda: _revision(launching, row_id)


@router.action("/train/{run_id}/stop", "train")
async def stop(launching: LaunchingPart, run_id: str) -> Response:
    """Stop a run of this server after its work in flight; a second call stops it immediately."""
    row = await asyncio.to_thread(launching.runs.get, run_id)
    own_launch = launching.of_run(row["id"])
    if own_launch is None or own_launch.over:
        raise NotFoundError(
            "This run is not a process of this server: stop it where it was started."
        )
    launching.launches.stop(own_launch)
    return see(f"/train/{row['id']}")


@router.action("/train/{run_id}/resume", "train")
async def resume(launching: LaunchingPart, run_id: str, form: Sent) -> Response:
    """Resume a run; for one that the guard paused, the form has `override_guard`."""
    row = await asyncio.to_thread(launching.runs.get, run_id)
    await launching.resume_training(row, override_guard=form.get("override_guard") == "on")
    return see(f"/train/{row['id']}")


def launch_shown(launch: Launch) -> dict[str, Any]:
    """Return a launch as plain data."""
    names = (
        "id",
        "kind",
        "model",
        "title",
        "status",
        "sentence",
        "run_id",
        "jobs",
        "phase",
        "over",
    )
    moment, revision = launch.created_at.isoformat(), str(launch.revision)
    shown = {name: getattr(launch, name) for name in names}
    return {**shown, "created_at": moment, "revision": revision}


def _apart(launch: Launch) -> bool:
    """Return True for a launch without a run that shows its state."""
    if launch.kind == "training":
        return launch.run_id is None
    return not launch.over or launch.status == "failed"


def _row(launching: Launching, run: dict[str, Any], slugs: dict[str, str]) -> dict[str, Any]:
    scores = run["state"].get("scores") or []
    return {
        "id": run["id"],
        "model": slugs.get(run["model_id"], run["config"].get("model", "")),
        "tasks": run["config"].get("tasks") or "",
        "held_out": ", ".join(_held_out(run["config"])),
        "status": _status(launching, run),
        "kind": run["config"].get("kind"),
        "next_step": run["next_step"],
        "steps": int(run["config"].get("steps") or 0),
        "supervised": "epoch" in run.get("metrics", {}),
        "reward": run.get("metrics", {}).get("rollout_reward:mean"),
        "first_score": scores[0] if scores else None,
        "last_score": scores[-1] if len(scores) > 1 else None,
        "created_at": run["created_at"],
        "updated_at": run["updated_at"],
    }


def _held_out(config: dict[str, Any]) -> list[str]:
    """Return the held-out sets of a recorded configuration, which is a single string in earlier releases."""
    tasksets = config.get("held_out") or []
    return [tasksets] if isinstance(tasksets, str) else [str(taskset) for taskset in tasksets]


def _others(launching: Launching, run: dict[str, Any]) -> list[dict[str, str]]:
    """Return the newest other runs with their names in charts, those of the same model first."""
    rows, _ = launching.runs.page(None, MOST_OTHERS, 0)
    slugs = {model.id: model.slug for model in launching.registry.models()}
    rows.sort(key=lambda row: row["model_id"] != run["model_id"])
    return [
        {
            "id": row["id"],
            "name": f"{slugs.get(row['model_id'], row['config'].get('model', ''))} {row['id'][:8]}",
        }
        for row in rows
        if row["id"] != run["id"]
    ]


def _status(launching: Launching, run: dict[str, Any]) -> str:
    """Return a run's status: that of its launch; else `interrupted` for a running one whose model has no lease."""
    own_launch = launching.of_run(run["id"])
    if own_launch is not None and not own_launch.over:
        return own_launch.status
    if run["status"] == "running":
        if own_launch is not None:
            return own_launch.status
        if launching.registry.leases.holder(run["model_id"]) is None:
            if run["state"].get(
                "by"
            ):  # A search of a prompt takes no lease: it changes no weights.
                return "interrupted" if is_gone(str(run["state"]["by"])) else "running"
            # A script has no planned end.
            return "finished" if run["config"].get("script") else "interrupted"
    return str(run["status"])


def _why_not_resumed(launching: Launching, run: dict[str, Any], status: str) -> str | None:
    if status in ("starting", "running", "stopping"):
        return "It runs."
    return launching.why_not_resumed(run)


def _revision(launching: Launching, run_id: str) -> Revision:
    run = launching.runs.get(run_id)
    own_launch = launching.of_run(run_id)
    status = _status(launching, run)
    heard = "" if own_launch is None else f"{own_launch.revision}"
    value = f"{status}-{run['next_step']}-{run['updated_at']}-{heard}".replace("+", "_")
    return Revision(value, over=status in OVER)


def _all_revision(launching: Launching) -> Revision:
    rows, total = launching.runs.page(None, 1, 0)
    newest = "".join(f"{run['updated_at']}{run['next_step']}" for run in rows)
    heard = sum(launch.revision for launch in launching.of_team())
    return Revision(f"{total}-{newest}-{heard}".replace("+", "_"))


def _model(launching: Launching, model_id: str) -> dict[str, Any]:
    model = launching.registry.model(model_id)
    return {"id": model.id, "slug": model.slug, "head": model.head_checkpoint_id}
