"""Routes of Tinker's API for records: training runs, checkpoints, sessions, samplers, and downloads of weights.

GET  /api/v1/training_runs | training_runs/{run} | training_runs/{run}/checkpoints | checkpoints | whoami
GET  /api/v1/training_runs/{run}/checkpoints/{kind}/{name}/external_weights_urls      POST /api/v1/weights_info
DELETE .../checkpoints/{kind}/{name}      PUT .../checkpoints/{kind}/{name}/ttl
GET  /api/v1/sessions | sessions/{id} | samplers/{id}
"""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request, Response

from hud_integrations.tinker.service import checkpoint_paths as paths
from hud_integrations.tinker.service.base_models import RUN as OF_RUN
from hud_integrations.tinker.service.base_models import base_of, name_of
from hud_integrations.tinker.service.client_state import ClientState
from hud_integrations.tinker.service.routes.sampling import TinkerPart, TinkerRoute
from hud_integrations.tinker.service.sampling_clients import sampler_of
from hud_integrations.tinker.service.wire.requests import TimeToLive, WeightsPath
from hud_platform.dependencies import READ, RUN, TRAIN, Limit, LinksPart, Models, Offset, Team, Who
from hud_platform.models.records import ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.routes.downloads import download_urls
from hud_platform.store import tables

router = APIRouter(tags=["tinker"], route_class=TinkerRoute)
_API = "/api/v1"
_CHECKPOINT = _API + "/training_runs/{run}/checkpoints/{kind}/{name}"
MOST_SAVES = 1000
"""Saves in a page of a run's checkpoints."""
SavesLimit = Annotated[int, Query(ge=1, le=MOST_SAVES)]


@router.get(_API + "/training_runs", dependencies=READ)
def list_training_runs(
    tinker: TinkerPart, registry: Models, limit: Limit = 20, offset: Offset = 0
) -> dict[str, Any]:
    """Models that training clients made, newest first."""
    name = tables.models.c.name
    of_clients = sa.and_(name.startswith("tinker-"), name.contains(OF_RUN))
    _, total = registry.page(0, 0, of_clients)
    # The newest first: from the end of the list.
    end = max(0, total - offset)
    runs, _ = registry.page(min(limit, end), max(0, end - limit), of_clients)
    shown = [_run(tinker, registry, model) for model in reversed(runs)]
    return {"training_runs": shown, "cursor": _cursor(limit, offset, total)}


@router.get(_API + "/training_runs/{run}", dependencies=READ)
def describe_training_run(tinker: TinkerPart, registry: Models, run: str) -> dict[str, Any]:
    return _run(tinker, registry, registry.model(run))


@router.get(_API + "/training_runs/{run}/checkpoints", dependencies=READ)
def list_checkpoints(
    registry: Models, run: str, limit: SavesLimit = MOST_SAVES, offset: Offset = 0
) -> dict[str, Any]:
    """Saves of a run, the newest ones where they are more than a page, oldest first."""
    saves, total = paths.page_of_run(registry, registry.model(run), limit, offset)
    shown = [save.shown() for save in reversed(saves)]
    return {"checkpoints": shown, "cursor": _cursor(limit, offset, total)}


@router.get(_API + "/checkpoints", dependencies=READ)
def list_all_checkpoints(
    registry: Models, limit: Limit = 100, offset: Offset = 0
) -> dict[str, Any]:
    """Saves of every run, newest first."""
    saves, total = paths.page_of_team(registry, limit, offset)
    shown = [save.shown() for save in saves]
    return {"checkpoints": shown, "cursor": _cursor(limit, offset, total)}


@router.delete(_CHECKPOINT, dependencies=TRAIN)
def delete_checkpoint(registry: Models, run: str, kind: str, name: str) -> Response:
    paths.remove(registry, paths.find(registry, run, f"{kind}/{name}"))
    return Response(status_code=204)


@router.put(_CHECKPOINT + "/ttl", dependencies=TRAIN)
def set_ttl(registry: Models, run: str, kind: str, name: str, body: TimeToLive) -> Response:
    paths.set_ttl(registry, paths.find(registry, run, f"{kind}/{name}"), body.ttl_seconds)
    return Response(status_code=204)


@router.get(_CHECKPOINT + "/external_weights_urls", dependencies=READ)
def external_weights_urls(
    request: Request,
    registry: Models,
    links: LinksPart,
    who: Who,
    run: str,
    kind: str,
    name: str,
) -> dict[str, Any]:
    """A URL for each file of saved weights, which needs no key, and is valid while the caller's is."""
    save = paths.find(registry, run, f"{kind}/{name}")
    return download_urls(request, links, who, registry, save.model, save.node)


@router.post(_API + "/weights_info", dependencies=RUN)
def weights_info(registry: Models, body: WeightsPath) -> dict[str, Any]:
    """Base model and adapter of a checkpoint, by its path."""
    model, _ = paths.resolve(registry, body.tinker_path)
    targets = model.config.lora_targets
    is_lora = model.config.training == "lora"
    return {
        "base_model": name_of(base_of(registry, model)),
        "is_lora": is_lora,
        "lora_rank": model.config.lora_rank if is_lora else None,
        "train_unembed": False if is_lora else None,
        "train_mlp": not targets or "up_proj" in targets if is_lora else None,
        "train_attn": not targets or "q_proj" in targets if is_lora else None,
    }


@router.get(_API + "/sessions", dependencies=READ)
def list_sessions(
    tinker: TinkerPart, team: Team, limit: Limit = 20, offset: Offset = 0
) -> dict[str, Any]:
    identifiers = [session.id for session in tinker.sessions.of_team(team)]
    return {"sessions": identifiers[offset : offset + limit]}


@router.get(_API + "/sessions/{session_id}", dependencies=READ)
def describe_session(tinker: TinkerPart, team: Team, session_id: str) -> dict[str, Any]:
    session = tinker.sessions.get(session_id, team)
    return {
        "training_run_ids": session.runs,
        "sampler_ids": session.samplers,
        "user_metadata": {key: str(value) for key, value in session.user_metadata.items()},
        "display_name": session.display_name,
    }


@router.get(_API + "/samplers/{sampler_id}", dependencies=READ)
def describe_sampler(registry: Models, sampler_id: str) -> dict[str, Any]:
    sampler = sampler_of(registry, sampler_id)
    base = base_of(registry, sampler.model)
    return {"sampler_id": sampler_id, "base_model": name_of(base), "model_path": sampler.path}


@router.get(_API + "/whoami", dependencies=READ)
def whoami(who: Who) -> dict[str, Any]:
    user = who.user_id or who.key_id or "local"
    return {"user_urn": f"urn:hud:user:{user}", "org_urn": f"urn:hud:team:{who.team_id}"}


def _run(tinker: ClientState, registry: Registry, model: ModelRecord) -> dict[str, Any]:
    last = {
        kind: save.shown()
        for kind in ("weights", "sampler_weights")
        if (save := paths.newest_of(registry, model, kind)) is not None
    }
    training = tinker.training.held(model.name)
    own = training is not None and training.registry.team == model.team_id
    newest = registry.tree.newest(model)
    changed = model.created_at if newest is None else newest.created_at
    metadata = (training.user_metadata or None) if training is not None and own else None
    return {
        "training_run_id": model.name,
        "base_model": name_of(base_of(registry, model)),
        "model_owner": model.team_id,
        "is_lora": model.config.training == "lora",
        "lora_rank": model.config.lora_rank if model.config.training == "lora" else None,
        "corrupted": False,
        "last_request_time": (training.last_request if training and own else changed).isoformat(),
        "last_checkpoint": last.get("weights"),
        "last_sampler_checkpoint": last.get("sampler_weights"),
        "user_metadata": None if metadata is None else {k: str(v) for k, v in metadata.items()},
    }


def _cursor(limit: int, offset: int, total: int) -> dict[str, int]:
    return {"offset": offset, "limit": limit, "total_count": total}
