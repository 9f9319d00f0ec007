"""Announcement of a run's capabilities in `hello`, and the target of a tunnel.

OpenHUD's client names its session in `tunnel.open`. Other clients send a capability's name only, on a separate connection,
so a name announced to them belongs to a single session: the first session has its capabilities under their own names, and
a concurrent one has `shell-sess-1a2b3c4d` for `shell`. Clients look capabilities up by protocol, and open the announced
name.
"""

from __future__ import annotations

from asyncio import StreamReader, StreamWriter, open_connection, timeout
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from hud.capabilities import Capability
from hud.capabilities.capability import FILE_TRACKING
from hud.environment.channel.framing import BAD_PARAMS, BAD_STATE, TASK_FAILED, ChannelError
from hud.environment.channel.server.file_tracking import FileTracking
from hud.environment.channel.server.sessions import Session, Sessions
from hud.environment.channel.server.tools_server import NAME as TOOLS
from hud.environment.channel.server.tools_server import ToolsServer
from hud.environment.streams import Stream, relay

_DIAL_SECONDS = 10.0

_Speak = Callable[[StreamReader, StreamWriter], Awaitable[None]]
"""Server of one tunnel, until it closes."""


class Offers:
    """The capabilities of all sessions of an environment."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.tools = ToolsServer(sessions)
        """Address of the environment's tools, for clients without `tools.call`."""

    async def announce(self, session: Session, *, ours: bool) -> list[dict[str, Any]]:
        """Return the bindings of a session, for OpenHUD's client or for one that names no session."""
        run = await session.open()
        if ours:
            return [capability.to_manifest() for capability in run.capabilities]
        shared = {capability.name for capability in run.environment.capabilities}
        protocols = {capability.protocol for capability in run.capabilities}
        if session.tracking is None and FILE_TRACKING not in protocols:
            session.tracking = await FileTracking.of(run)
        bindings = [capability.to_manifest() for capability in _of(session)]
        for binding in bindings:
            if binding["name"] not in shared:
                binding["name"] = self._announced(session, binding["name"])
        if self.tools.available and await run.list_tools():
            bindings.append(self.tools.capability(session).to_manifest())
        return bindings

    async def open(self, params: dict[str, Any]) -> _Speak:
        """Return the handler of a tunnel's bytes."""
        capability = self.find(params)
        for session in self.sessions:
            if session.tracking is not None and session.tracking.capability is capability:
                return session.tracking.serve
        there = await dial(capability)
        return lambda reader, writer: relay((reader, writer), there)

    def find(self, params: dict[str, Any]) -> Capability:
        """Return the capability of a `tunnel.open`. Raises `ChannelError` for an unknown one."""
        name, session_id = params.get("capability"), params.get("session_id")
        if not isinstance(name, str):
            raise ChannelError(BAD_PARAMS, "tunnel.open: capability must be a string")
        if session_id is not None:
            session = self.sessions.find(session_id) if isinstance(session_id, str) else None
            if session is None:
                raise ChannelError(BAD_STATE, f"tunnel.open: unknown session {session_id}")
            if name == TOOLS:
                return self.tools.capability(session)
            return self._of_one(session, name)
        if name == TOOLS:
            # One port for all sessions, which differ in the path.
            session = next(iter(self.sessions), None)
            return self._absent(name, []) if session is None else self.tools.capability(session)
        for capability in self.sessions.environment.capabilities:
            if capability.name == name:
                return capability
        for session in self.sessions:
            if name in session.announced:
                return self._of_one(session, name)
        return self._of_any(name)

    def _announced(self, session: Session, name: str) -> str:
        """Return the name under which a session's capability is announced; it does not change."""
        for announced, meant in session.announced.items():
            if meant == name:
                return announced
        taken = any(name in other.announced for other in self.sessions if other is not session)
        announced = f"{name}-{session.id}" if taken else name
        session.announced[announced] = name
        return announced

    def _of_one(self, session: Session, name: str) -> Capability:
        capability = _own(session, name)
        return self._absent(name, _of(session)) if capability is None else capability

    def _of_any(self, name: str) -> Capability:
        """Return the capability of that name, if exactly one session has it."""
        having: dict[str, Capability] = {}
        offered = [*self.sessions.environment.capabilities]
        for session in self.sessions:
            if not session.is_open:
                continue
            offered += _of(session)
            capability = _own(session, name)
            if capability is not None:
                having[session.id] = capability
        if len(having) > 1:
            raise ChannelError(
                BAD_STATE,
                f"tunnel.open: {len(having)} sessions have a capability {name!r}: {', '.join(having)}; say which by "
                "session_id, or ask for it by the name that hello announced",
            )
        return next(iter(having.values())) if having else self._absent(name, offered)

    def _absent(self, name: str, offered: list[Capability]) -> NoReturn:
        names = ", ".join(sorted({capability.name for capability in offered})) or "none"
        raise ChannelError(
            TASK_FAILED,
            f"environment {self.sessions.environment.name!r} has no capability {name!r} (there are: {names})",
            "environment",
        )


def _of(session: Session) -> list[Capability]:
    """Return all capabilities of a session, including those for third-party clients."""
    tracking = [] if session.tracking is None else [session.tracking.capability]
    return [*session.run.capabilities, *tracking]


def _own(session: Session, name: str) -> Capability | None:
    meant = session.announced.get(name, name)
    for capability in _of(session):
        if capability.name == meant:
            return capability
    return None


async def dial(capability: Capability) -> Stream:
    """Connect to a capability's server, in this process or at its address. Raises `ChannelError` without an answer."""
    host, port = capability.address
    try:
        async with timeout(_DIAL_SECONDS):
            return await open_connection(host, port)
    except (OSError, TimeoutError) as error:
        reason = str(error) or f"no answer within {_DIAL_SECONDS:g} s"
        raise ChannelError(
            TASK_FAILED,
            f"capability {capability.name!r} does not answer at {host}:{port}: {reason}",
            "environment",
        ) from error
