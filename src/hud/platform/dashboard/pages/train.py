"""Training: the runs, one run with its curves, and stopping and resuming it. `train_launch` begins one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import Query, Request
from fastapi.responses import Response, StreamingResponse

from hud.errors import NotFoundError
from hud.platform.access import caller
from hud.platform.dashboard.events import Revision, changes
from hud.platform.dashboard.page import Pages, see
from hud.platform.dashboard.pages.train_curves import (
    CAPTIONS,
    MOST_OVERLAID,
    charts,
    curve,
    overlaid,
)
from hud.platform.dashboard.pages.train_form import changed
from hud.platform.dashboard.pages.train_steps import step_rows
from hud.platform.dashboard.rendering import page
from hud.platform.training.launch_request import resume_training, why_not_resumed
from hud.platform.training.runs import TrainingRuns
from hud.platform.training_jobs import TrainingJobs
from hud.train.monitoring.alarms import alarms
from hud.train.monitoring.progress import Score

if TYPE_CHECKING:
    from hud.platform.platform import Platform
    from hud.platform.training.launcher import Launch

router = Pages()
PER_PAGE = 50
RECENT_STEPS = 8
MOST_OTHERS = 50
_Runs = Annotated[Sequence[str], Query(alias="with")]
"""Ids of other training runs."""
OVER = ("finished", "stopped", "interrupted", "failed")


@router.page("/train")
def training(request: Request, offset: Annotated[int, Query(ge=0, le=2**31)] = 0) -> Response:
    """The training runs, newest first, and what was launched and has not opened a run yet."""
    platform, team = _platform(request), caller(request).team_id
    found, total = TrainingRuns(platform.store, team).page(None, PER_PAGE, offset)
    slugs = {model.id: model.slug for model in platform.registry_of(team).models()}
    items = [_row(platform, team, run, slugs) for run in found]
    launches = [launch_shown(one) for one in platform.launches.of_team(team) if _apart(one)]
    data = {
        "items": items,
        "launches": launches,
        "total": total,
        "limit": PER_PAGE,
        "offset": offset,
        "revision": _all_revision(platform, team).value,
    }
    return page(request, "train.html", data)


@router.get("/events/train")
def training_events(request: Request, seen: str = "") -> StreamingResponse:
    """Tell when a run or a launch of the team has changed."""
    platform, team = _platform(request), caller(request).team_id
    return changes(request, ("train", team), lambda: _all_revision(platform, team), seen)


@router.page("/train/launches/{launch_id}")
def launch(request: Request, launch_id: str) -> Response:
    """A launch, until its run is open; then the browser goes on to that."""
    found = _platform(request).launches.find(caller(request).team_id, launch_id)
    if found.kind == "training" and found.run_id is not None:
        place = f"/train/{found.run_id}"
        # Within a page, the browser would follow a redirect and put the run's page where a part of this one was.
        if request.headers.get("hx-request"):
            return Response(headers={"hx-redirect": place})
        return see(place)
    return page(request, "train_launch.html", {"launch": launch_shown(found)})


@router.get("/events/train/launches/{launch_id}")
def launch_events(request: Request, launch_id: str, seen: str = "") -> StreamingResponse:
    """Tell when a launch has changed."""
    platform, team = _platform(request), caller(request).team_id
    found = platform.launches.find(team, launch_id)

    def read() -> Revision:
        return Revision(str(found.revision), over=found.over)

    return changes(request, ("launch", found.id), read, seen)


@router.post("/train/launches/{launch_id}/stop")
async def stop_launch(request: Request, launch_id: str) -> Response:
    """Stop a launch, with the scope that launching it took."""
    platform, who = _platform(request), caller(request)
    who.require("run")
    found = platform.launches.find(who.team_id, launch_id)
    if found.kind == "training":
        who.require("train")
    platform.launches.stop(found)
    return see(f"/train/launches/{found.id}")


@router.page("/train/{run_id}")
def run(request: Request, run_id: str, beside: _Runs = ()) -> Response:
    """One training run; its charts show other runs `with` it."""
    platform, team = _platform(request), caller(request).team_id
    runs = TrainingRuns(platform.store, team)
    found = runs.get(run_id)
    history = runs.steps(found["id"])
    scores = [Score(**one) for one in found["state"].get("scores") or []]
    model = _model(platform, team, found["model_id"])
    mine = platform.launches.of_run(team, found["id"])
    drawn, quiet = charts(history)
    others = _others(platform, team, found)
    shown = _row(platform, team, found, {found["model_id"]: model["slug"]}) | {
        "metrics": history[-1]["metrics"] if history else {}
    }
    data = {
        "run": shown,
        "model": model,
        "launch": None if mine is None or mine.over else launch_shown(mine),
        "error": found["state"].get("error") if shown["status"] not in ("running",) else None,
        "scores": [asdict(one) for one in scores],
        "best": max(map(asdict, scores), key=lambda one: (one["mean"], one["step"]), default=None),
        "alarms": [asdict(one) for one in alarms(history, scores)],
        "config": changed(found["config"]),
        "captions": CAPTIONS,
        "charts": drawn,
        "quiet": quiet,
        "overlaid": [one for one in others if one["id"] in beside],
        "others": [one for one in others if one["id"] not in beside],
        "jobs": TrainingJobs(platform.store, team).shown(found, model["slug"]),
        "recent": step_rows(history[: -RECENT_STEPS - 1 : -1]),
        "why_not_resumed": _why_not_resumed(platform, team, found, shown["status"]),
        "revision": _revision(platform, team, found["id"]).value,
    }
    return page(request, "train_run.html", data)


@router.get("/train/{run_id}/curves/{name}.json")
def curves(request: Request, run_id: str, name: str, beside: _Runs = ()) -> Response:
    """The data of one of a run's charts, with other runs in it."""
    if name not in CAPTIONS:
        raise NotFoundError(f"There is no curve {name!r}; there are {', '.join(CAPTIONS)}.")
    platform, team = _platform(request), caller(request).team_id
    runs = TrainingRuns(platform.store, team)
    found = runs.get(run_id)
    data = curve(name, runs.steps(found["id"]), found["state"].get("scores") or [])
    known = {one["id"]: one for one in _others(platform, team, found)}
    others = {}
    for one in [runs.get(other) for other in list(dict.fromkeys(beside))[:MOST_OVERLAID]]:
        if one["id"] != found["id"]:
            called = known[one["id"]]["name"] if one["id"] in known else one["id"][:8]
            others[called] = curve(name, runs.steps(one["id"]), one["state"].get("scores") or [])
    if others:
        data = overlaid(data, others)
    return Response(orjson.dumps(data), media_type="application/json")


@router.get("/events/train/{run_id}")
def run_events(request: Request, run_id: str, seen: str = "") -> StreamingResponse:
    """Tell when a run has changed."""
    platform, team = _platform(request), caller(request).team_id
    found = TrainingRuns(platform.store, team).get(run_id)["id"]
    return changes(request, ("train", team, found), lambda: _revision(platform, team, found), seen)


@router.post("/train/{run_id}/stop")
async def stop(request: Request, run_id: str) -> Response:
    """Stop a run that this server runs: after what is in flight; asked again, at once."""
    platform, who = _platform(request), caller(request)
    who.require("train")
    runs = TrainingRuns(platform.store, who.team_id)
    found = await asyncio.to_thread(runs.get, run_id)
    mine = platform.launches.of_run(who.team_id, found["id"])
    if mine is None or mine.over:
        raise NotFoundError("This server does not run it: stop it where it was started.")
    platform.launches.stop(mine)
    return see(f"/train/{found['id']}")


@router.post("/train/{run_id}/resume")
async def resume(request: Request, run_id: str) -> Response:
    """Go on with a run."""
    platform, who = _platform(request), caller(request)
    who.require("train")
    runs = TrainingRuns(platform.store, who.team_id)
    found = await asyncio.to_thread(runs.get, run_id)
    await resume_training(platform, who, found)
    return see(f"/train/{found['id']}")


def launch_shown(launch: Launch) -> dict[str, Any]:
    """Return a launch as plain data."""
    return {
        "id": launch.id,
        "kind": launch.kind,
        "model": launch.model,
        "title": launch.title,
        "status": launch.status,
        "sentence": launch.sentence,
        "run_id": launch.run_id,
        "jobs": list(launch.jobs),
        "phase": dict(launch.phase),
        "created_at": launch.created_at.isoformat(),
        "over": launch.over,
        "revision": str(launch.revision),
    }


def _apart(launch: Launch) -> bool:
    """True for a launch that stands for itself: no run shows how it is doing."""
    if launch.kind == "training":
        return launch.run_id is None
    return not launch.over or launch.status == "failed"


def _row(
    platform: Platform, team: str, run: dict[str, Any], slugs: dict[str, str]
) -> dict[str, Any]:
    scores = run["state"].get("scores") or []
    steps = int(run["config"].get("steps") or 0)
    return {
        "id": run["id"],
        "model": slugs.get(run["model_id"], run["config"].get("model", "")),
        "tasks": run["config"].get("tasks") or "",
        "held_out": run["config"].get("held_out") or "",
        "status": _status(platform, team, run),
        "next_step": run["next_step"],
        "steps": steps,
        "reward": run.get("metrics", {}).get("rollout_reward:mean"),
        "first_score": scores[0] if scores else None,
        "last_score": scores[-1] if len(scores) > 1 else None,
        "created_at": run["created_at"],
        "updated_at": run["updated_at"],
    }


def _others(platform: Platform, team: str, run: dict[str, Any]) -> list[dict[str, str]]:
    """Return the newest other runs, those of the same model first, by what a chart calls them."""
    found, _ = TrainingRuns(platform.store, team).page(None, MOST_OTHERS, 0)
    slugs = {model.id: model.slug for model in platform.registry_of(team).models()}
    found.sort(key=lambda one: one["model_id"] != run["model_id"])
    return [
        {
            "id": one["id"],
            "name": f"{slugs.get(one['model_id'], one['config'].get('model', ''))} {one['id'][:8]}",
        }
        for one in found
        if one["id"] != run["id"]
    ]


def _status(platform: Platform, team: str, run: dict[str, Any]) -> str:
    """Return how a run is doing: its launch knows best; else, a run that nobody holds the model for is not running."""
    mine = platform.launches.of_run(team, run["id"])
    if mine is not None and not mine.over:
        return mine.status
    if run["status"] == "running":
        if mine is not None:
            return mine.status
        if platform.registry_of(team).leases.holder(run["model_id"]) is None:
            return "interrupted"
    return str(run["status"])


def _why_not_resumed(platform: Platform, team: str, run: dict[str, Any], status: str) -> str | None:
    if status in ("starting", "running", "stopping"):
        return "It runs."
    return why_not_resumed(platform, team, run)


def _revision(platform: Platform, team: str, run_id: str) -> Revision:
    run = TrainingRuns(platform.store, team).get(run_id)
    mine = platform.launches.of_run(team, run_id)
    status = _status(platform, team, run)
    heard = "" if mine is None else f"{mine.revision}"
    value = f"{status}-{run['next_step']}-{run['updated_at']}-{heard}".replace("+", "_")
    return Revision(value, over=status in OVER)


def _all_revision(platform: Platform, team: str) -> Revision:
    found, total = TrainingRuns(platform.store, team).page(None, 1, 0)
    newest = "".join(f"{run['updated_at']}{run['next_step']}" for run in found)
    heard = sum(one.revision for one in platform.launches.of_team(team))
    return Revision(f"{total}-{newest}-{heard}".replace("+", "_"))


def _model(platform: Platform, team: str, model_id: str) -> dict[str, Any]:
    registry = platform.registry_of(team)
    model = registry.model(model_id)
    return {"id": model.id, "slug": model.slug, "head": model.head_checkpoint_id}


def _platform(request: Request) -> Platform:
    platform: Platform = request.app.state.platform
    return platform
