"""GET /downloads/{token}/{file}: a file of a checkpoint's weights, by a signed URL that needs no key."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse

from hud.errors import NotFoundError
from hud_platform.access.identity import Identity
from hud_platform.access.signed_links import SignedLinks
from hud_platform.dependencies import LinksPart
from hud_platform.models.checkpoint_files import SAMPLER
from hud_platform.models.records import CheckpointRecord, ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.store.clock import steady_time

DOWNLOAD = "download"
"""Purpose of the signed links."""
DOWNLOAD_SECONDS = 3600.0
"""Time for which a URL is valid."""

router = APIRouter(tags=["models"])


def download_urls(
    request: Request,
    links: SignedLinks,
    who: Identity,
    registry: Registry,
    model: ModelRecord,
    node: CheckpointRecord,
) -> dict[str, Any]:
    """Return a URL for each file of a checkpoint's weights, and their end. Each is valid while the caller's key is. Blocks."""
    folder = registry.tree.present(node, model) / SAMPLER
    until = steady_time() + DOWNLOAD_SECONDS
    token = links.make(DOWNLOAD, node.id, who, until)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        "urls": {
            str(file): str(request.url_for("download_weights", token=token, file=str(file)))
            for file in files
        },
        "expires": datetime.fromtimestamp(until, UTC).isoformat(),
    }


@router.get("/downloads/{token}/{file:path}")
def download_weights(request: Request, links: LinksPart, token: str, file: str) -> FileResponse:
    """A file of saved weights, by its signed URL."""
    registry: Registry = request.app.state.parts.registry
    node = registry.tree.get(links.subject(DOWNLOAD, token))
    folder = (registry.tree.present(node, registry.model(node.model_id)) / SAMPLER).resolve()
    path = (folder / file).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        raise NotFoundError(f"There is no file {file!r} in these weights.")
    return FileResponse(path)
