"""Routes of runtime sessions: environments on this server for agents elsewhere.

POST /runtime/sessions      DELETE /runtime/sessions/{id}      WS /runtime/tunnels/{id}
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from hud.errors import HudError, NotFoundError
from hud_platform.access.admission import ACCESS_DENIED
from hud_platform.dependencies import RUN, RuntimeSessionsPart, Team, Who, of_team
from hud_platform.environments.registry import Environments

router = APIRouter(prefix="/runtime", tags=["environments"])
_CHUNK = 1 << 18
FAILED = 1011
"""Close code of a tunnel to an environment that failed to start."""


class NewSession(BaseModel):
    """Request to run an environment."""

    environment: str
    trace_id: str | None = None


@router.post("/sessions", dependencies=RUN)
async def start(
    environments: Annotated[Environments, of_team(Environments)],
    sessions: RuntimeSessionsPart,
    body: NewSession,
) -> JSONResponse:
    """Start the newest build of an environment, for one client."""
    runnable = await asyncio.to_thread(environments.runnable, body.environment)
    session = sessions.start(environments.team, runnable)
    return JSONResponse({"id": session.id, "status": "starting"}, status_code=201)


@router.delete("/sessions/{session_id}", dependencies=RUN)
async def end(sessions: RuntimeSessionsPart, team: Team, session_id: str) -> dict[str, Any]:
    """End a session. Idempotent: ending a finished session is not an error."""
    try:
        await sessions.end(sessions.find(team, session_id))
    except NotFoundError:
        return {"id": session_id, "status": "unknown"}
    return {"id": session_id, "status": "ended"}


@router.websocket("/tunnels/{session_id}")
async def tunnel(
    socket: WebSocket, sessions: RuntimeSessionsPart, who: Who, session_id: str
) -> None:
    """Tunnel the bytes of one new connection to a session's environment, in both directions, once it is up."""
    await socket.accept()
    try:
        if not who.may("run"):
            raise NotFoundError("This key lacks the scope 'run'.")
        session = sessions.find(who.team_id, session_id)
    except NotFoundError as error:
        await socket.close(ACCESS_DENIED, str(error)[:120])
        return
    session.tunnels += 1
    try:
        # Clients send immediately; their messages stay in the WebSocket's queue until they are read.
        host, port = await session.reached()
        reader, writer = await asyncio.open_connection(host, port)
    except (HudError, OSError) as error:
        with contextlib.suppress(
            WebSocketDisconnect, RuntimeError
        ):  # The client may have disconnected.
            await socket.close(FAILED, str(error)[:120])
    else:
        await _carry(socket, reader, writer)
    finally:
        session.tunnels -= 1


async def _carry(
    socket: WebSocket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    there, back = (
        asyncio.create_task(_to_environment(socket, writer)),
        asyncio.create_task(_from_environment(socket, reader)),
    )
    try:
        # A disconnect of the client closes the connection; one of the environment closes the tunnel.
        await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (there, back):
            task.cancel()
        await asyncio.wait({there, back})
        writer.close()


async def _to_environment(socket: WebSocket, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            message = await socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is None:
                data = (message.get("text") or "").encode()
            if data:
                writer.write(data)
                await writer.drain()
            else:
                writer.write_eof()  # The client has finished sending and still receives.
    except (WebSocketDisconnect, RuntimeError, OSError):
        return


async def _from_environment(socket: WebSocket, reader: asyncio.StreamReader) -> None:
    try:
        while chunk := await reader.read(_CHUNK):
            await socket.send_bytes(chunk)
        await socket.close()
    except (WebSocketDisconnect, RuntimeError, OSError):
        return
