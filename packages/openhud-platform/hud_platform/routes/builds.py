"""Routes of builds.

POST /v2/builds/upload-url      PUT /uploads/{build_id}      POST /v2/builds/trigger
GET /v2/builds/{id}/status | lines      WS /v2/builds/{id}/logs
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, WebSocket, WebSocketDisconnect
from pydantic import BaseModel

from hud.errors import NotFoundError, PlatformError, UsageError
from hud.trace import new_id, plain
from hud.trace.json_values import is_text
from hud_platform.access.admission import ACCESS_DENIED
from hud_platform.dependencies import (
    READ,
    TRAIN,
    Audit,
    ConfigPart,
    LinksPart,
    StorePart,
    Team,
    Who,
    part,
)
from hud_platform.environments.build_queue import FAILED, Builds
from hud_platform.environments.registry import SUCCEEDED
from hud_platform.store.clock import steady_time

router = APIRouter(tags=["environments"])

POLL_SECONDS = 0.2
UPLOAD = "upload"
"""Purpose of signed links to which archives are uploaded."""
UPLOAD_SECONDS = 3600.0
BuildsPart = Annotated[Builds, part(lambda parts: Builds(parts.store, parts.config.home))]


class Trigger(BaseModel):
    """A request for a build."""

    build_id: str
    name: str
    entry: str | None = None
    """Source file that defines the environment; None: one of the default names."""
    source: str = "direct"
    no_cache: bool = False
    registry_id: str | None = None
    project_id: str | None = None
    runtime_provider: str | None = None
    runtime_config: dict[str, Any] | None = None
    environment_variables: dict[str, str] = {}
    build_args: dict[str, str] = {}
    build_secrets: dict[str, str] = {}


@router.post("/v2/builds/upload-url", dependencies=TRAIN)
def upload_url(request: Request, builds: BuildsPart, links: LinksPart, who: Who) -> dict[str, str]:
    """Create a build and return the URL to PUT its archive (tar.gz) to. The URL needs no key; it is valid for an hour, and
    while the key is."""
    build_id = builds.begin(who.team_id)
    place = request.url_for("receive_archive", build_id=build_id)
    token = links.make(UPLOAD, build_id, who, steady_time() + UPLOAD_SECONDS)
    return {"upload_url": f"{place}?token={token}", "build_id": build_id}


@router.put("/uploads/{build_id}")
async def receive_archive(
    request: Request,
    builds: BuildsPart,
    store: StorePart,
    config: ConfigPart,
    links: LinksPart,
    build_id: str,
    token: str,
) -> dict[str, Any]:
    """Receive the archive of a build."""
    if await asyncio.to_thread(links.subject, UPLOAD, token) != plain(build_id):
        raise PlatformError("This URL is of another build.", 403)
    await asyncio.to_thread(builds.awaited, build_id)
    # A new key for each upload: the archive of a triggered build never changes.
    key = f"archives/{plain(build_id)}/{new_id()}.tar.gz"
    most = config.builds.archive_bytes
    size = 0
    with tempfile.TemporaryFile() as file:
        async for chunk in request.stream():
            size += len(chunk)
            if size > most:
                raise PlatformError(f"An archive holds at most {most / 2**20:g} MiB.", 413)
            await asyncio.to_thread(file.write, chunk)
        file.seek(0)
        await asyncio.to_thread(store.blobs.put_file, key, file)
    try:
        await asyncio.to_thread(builds.received, build_id, key)
    except NotFoundError:
        await asyncio.to_thread(store.blobs.delete, key)
        raise
    return {"build_id": build_id, "size": size}


@router.post("/v2/builds/trigger", dependencies=TRAIN)
def trigger(builds: BuildsPart, team: Team, audit: Audit, body: Trigger) -> dict[str, Any]:
    """Queue a build of its uploaded archive."""
    if body.runtime_provider not in (None, "hud"):
        raise UsageError(f"This server has no runtime provider {body.runtime_provider!r}.")
    private = body.model_dump(include={"environment_variables", "build_args", "build_secrets"})
    _check(body.name, body.entry, private)
    begun = builds.trigger(
        team,
        body.build_id,
        body.name,
        registry_id=body.registry_id,
        project_id=body.project_id,
        options=body.model_dump(include={"no_cache", "runtime_config", "entry"}),
        private=private,
    )
    audit.note("environment built", body.name, build_id=begun["id"])
    return begun


def _check(name: str, entry: str | None, private: dict[str, dict[str, str]]) -> None:
    """Raise `UsageError` for text that cannot be an environment variable or be stored."""
    if not is_text(name) or not is_text(entry or ""):
        raise UsageError("The name and the entry of a build are text without NUL.")
    for kind, values in private.items():
        for key, value in values.items():
            if not key or "=" in key or not is_text(key) or not is_text(value):
                raise UsageError(f"{kind}: {key!r} cannot be an environment variable.")


@router.get("/v2/builds/{build_id}/status", dependencies=READ)
def status(builds: BuildsPart, team: Team, build_id: str) -> dict[str, Any]:
    """Progress and result of a build."""
    return builds.status(team, build_id)


@router.get("/v2/builds/{build_id}/lines", dependencies=READ)
def lines(
    builds: BuildsPart, team: Team, build_id: str, after: Annotated[int, Query(ge=0)] = 0
) -> dict[str, Any]:
    """The log's lines after number `after`, for clients that poll."""
    builds.status(team, build_id)
    rows = builds.lines(build_id, after)
    items = [
        {"number": number, "text": text, "created_at": at.isoformat()} for number, text, at in rows
    ]
    return {"items": items, "total": len(items)}


@router.websocket("/v2/builds/{build_id}/logs")
async def logs(
    socket: WebSocket,
    builds: BuildsPart,
    who: Who,
    build_id: str,
    after: Annotated[int, Query(ge=0)] = 0,
) -> None:
    """Stream a build's log from the first line to its end; the last message is `complete`."""
    try:
        if not who.may("read"):
            raise NotFoundError("This key may not read.")
        await asyncio.to_thread(builds.status, who.team_id, build_id)
    except NotFoundError as error:
        await socket.accept()
        await socket.close(ACCESS_DENIED, str(error)[:120])
        return
    await socket.accept()
    try:
        await _tell(socket, builds, who.team_id, build_id, after)
        await socket.close()
    except (WebSocketDisconnect, RuntimeError):
        return  # The client has disconnected.


async def _tell(socket: WebSocket, builds: Builds, team: str, build_id: str, last: int) -> None:
    status = ""
    while True:
        state = await asyncio.to_thread(builds.status, team, build_id)
        if state["status"] != status:
            status = state["status"]
            await socket.send_json({"type": "status", "message": status, "status": status})
        for number, text, at in await asyncio.to_thread(builds.lines, build_id, last):
            last = number
            moment = round(at.timestamp() * 1000)
            await socket.send_json({"type": "log", "message": text, "timestamp": moment})
        if status in (SUCCEEDED, FAILED):
            message = state["error_message"] or f"Version {state['version']} is ready."
            await socket.send_json(
                {"type": "complete", "final_status": status, "status": status, "message": message}
            )
            return
        await asyncio.sleep(POLL_SECONDS)
