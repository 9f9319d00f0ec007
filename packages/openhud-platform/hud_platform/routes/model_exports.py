"""Route of exports: a model as a folder or file on the server's disk, and as a repository of the Hugging Face hub.

POST /v2/models/{id}/export
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel

from hud.engine.model_files.formats import format_named
from hud.errors import ConflictError, PlatformError, UsageError
from hud_platform.dependencies import ADMIN, READ, EnginePart, Models, Team
from hud_platform.exports.hub_upload import check_repository, create_repository, upload
from hud_platform.exports.model_card import card_subject, write_card
from hud_platform.models.adapter_export import export_adapter
from hud_platform.models.records import BASE, FOLDER
from hud_platform.models.weight_sources import machine_path
from hud_platform.serving.calls import ExportModel
from hud_platform.store.tables import LOCAL_TEAM

router = APIRouter(prefix="/v2/models", tags=["models"], dependencies=READ)


class ExportRequest(BaseModel):
    """Export a model with its card: as a Hugging Face folder or one file, an adapter merged; or its adapter alone."""

    folder: str
    checkpoint_id: str | None = None
    form: str = FOLDER
    """`hf`, `peft`, or the name of a format of model files (`hud.model_files`)."""
    dtype: Literal["float32", "float16", "bfloat16"] | None = None
    """Type of a file's weights; null: that of the model."""
    push: str | None = None
    """Id of a new repository on the Hugging Face hub, OWNER/NAME; null: none. The server's token of the hub is used."""
    public: bool = False
    """Whether everyone may read that repository."""


@router.post("/{model_id}/export", dependencies=ADMIN)
async def export(
    registry: Models, engine: EnginePart, team: Team, model_id: str, body: ExportRequest
) -> dict[str, Any]:
    model = registry.model(model_id)
    wanted = body.checkpoint_id or "head"
    checkpoint = registry.tree.find(model, wanted)
    _require_disk(team)
    if body.form not in (FOLDER, "peft"):
        await asyncio.to_thread(format_named, body.form)
    elif body.dtype is not None:
        raise UsageError("A type of weights is set for a file, such as GGUF, alone.")
    if body.push is not None:
        await asyncio.to_thread(check_repository, body.push)
    folder = await asyncio.to_thread(_empty_folder, body.folder)
    if body.form == "peft":
        await asyncio.to_thread(export_adapter, registry, model, checkpoint, folder)
    else:
        wanted_form = {"form": body.form, "dtype": body.dtype}
        call = ExportModel(checkpoint=checkpoint, folder=str(folder), **wanted_form)
        await engine.call(model, call)
    subject = await asyncio.to_thread(card_subject, registry, model, checkpoint)
    await asyncio.to_thread(write_card, subject, folder, body.form, repository=body.push)
    shown = {"folder": str(folder), "checkpoint_id": checkpoint, "model": model.slug}
    if body.push is None:
        return shown
    await asyncio.to_thread(create_repository, body.push, private=not body.public)
    message = f"{model.slug} at {checkpoint or BASE}"
    url = await asyncio.to_thread(upload, folder, body.push, message=message)
    return {**shown, "url": url}


def _require_disk(team: str) -> None:
    """Raise `PlatformError` 403 for teams other than the first one, whose admins operate the server."""
    if team != LOCAL_TEAM:
        raise PlatformError(
            "Folders of the server's disk are for admins of the first team. Ask one of them for an export.",
            403,
        )


def _empty_folder(path: str) -> Path:
    """Return a folder of this machine, made if necessary. Raises `ConflictError` if it holds something, `UsageError` if there is no such path."""
    folder = machine_path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConflictError(f"{folder} exists and is not empty; choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}.") from error
    return folder
