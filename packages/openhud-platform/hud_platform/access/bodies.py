"""Bodies of requests, with limits for a single body, by scope, and for all bodies together.
This middleware reads whole bodies, so that routes never parse oversized or invalid text. Streamed uploads have limits
in their routes.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

from hud import exact_json
from hud_platform.access.identity import Identity
from hud_platform.access.middleware import App, Receive, Scope, Send, refuse
from hud_platform.access.paths import is_inference
from hud_platform.access.request_headers import header

WITHOUT_KEY = 64 << 10
READING = 1 << 20
INFERENCE = RUNNING = FLEET = 64 << 20
TRAINING = 512 << 20
"""Maximum size of one body in bytes: without a key, with the scope `read`, `run` (and all inference), and higher scopes."""
TOGETHER = 1 << 30
TOGETHER_OF_TEAM = 512 << 20
"""Maximum total size of all bodies in memory, in bytes, and of those of one team; a single body may always reach its own limit."""

NO_TEXT = "A value of this request holds half of a surrogate pair, which is not a character."

_STREAMED_BELOW = "/uploads/"
_STREAMED_ENDS = "/telemetry-upload"
_ROWS = "/v2/tasks/upload"
"""Path of the task upload, which checks the texts of its rows itself and names an invalid one."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""Escapes of JSON, complete surrogate pairs first."""
_LONG = 1 << 20
"""Size in bytes above which a body is checked in a thread, off the event loop."""


class Bodies:
    """Middleware that reads request bodies: 400 for invalid text, 413 for an oversized body, 503 when memory is full."""

    def __init__(self, app: App, *, keys: bool) -> None:
        self.app = app
        self.keys = keys
        self.held: Counter[str] = Counter()
        """Bytes in memory by team; those of requests without a key under an empty id."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _has_body(scope) or _is_streamed(scope["path"]):
            await self.app(scope, receive, send)
            return
        held = _Held(self, _team(scope))
        try:
            refusal = await held.read(scope, receive, self._most(scope))
            if refusal is not None:
                await refuse(scope, send, *refusal)
                return
            if held.gone:
                return
            await self.app(scope, held.replay(receive), send)
        finally:
            self.held[held.team] -= held.size
            if not self.held[held.team]:
                del self.held[held.team]

    def _most(self, scope: Scope) -> int:
        if not self.keys:
            return TRAINING
        who = _identity(scope)
        if who is None:
            return WITHOUT_KEY
        if is_inference(scope["path"]):
            return INFERENCE if who.may("run") else READING
        if who.worker and who.key_id is not None:
            return FLEET
        if who.worker or who.may("train"):
            return TRAINING
        return RUNNING if who.may("run") else READING


def _identity(scope: Scope) -> Identity | None:
    who: Identity | None = (scope.get("state") or {}).get("identity")
    return who


def _team(scope: Scope) -> str:
    who = _identity(scope)
    return "" if who is None else who.team_id


class _Held:
    """Body of one request."""

    def __init__(self, bodies: Bodies, team: str) -> None:
        self.bodies = bodies
        self.team = team
        self.size = 0
        self.body = b""
        self.gone = False
        """True if the client disconnected before the end of its body."""

    async def read(
        self, scope: Scope, receive: Receive, most: int
    ) -> tuple[int, str, dict[str, str]] | None:
        """Read the body. Returns the reason to refuse it, or None."""
        if _declared(scope) > most:
            return _too_large(most)
        parts: list[bytes] = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.gone = True
                return None
            part: bytes = message.get("body", b"")
            self.size += len(part)
            self.bodies.held[self.team] += len(part)
            if self.size > most:
                return _too_large(most)
            theirs = self.bodies.held[self.team]
            if (theirs > TOGETHER_OF_TEAM and theirs > self.size) or (
                self.bodies.held.total() > TOGETHER and self.bodies.held.total() > self.size
            ):
                sentence = "The bodies of concurrent requests fill the memory; send this one again."
                return 503, sentence, {"retry-after": "1"}
            parts.append(part)
            if not message.get("more_body"):
                break
        self.body = parts[0] if len(parts) == 1 else b"".join(parts)
        inference = is_inference(scope["path"])
        if (
            (_is_json(scope) or inference)
            and len(self.body) > exact_json.MOST_CONTAINERS
            and await asyncio.to_thread(exact_json.has_many_containers, self.body)
        ):
            return 400, MANY_CONTAINERS, {}
        if _is_json(scope) and not inference:
            look = depth_problem if scope["path"] == _ROWS else json_problem
            long = len(self.body) > _LONG
            problem = await asyncio.to_thread(look, self.body) if long else look(self.body)
            if problem is not None:
                return 400, problem, {}
        return None

    def replay(self, receive: Receive) -> Receive:
        """Return an ASGI `receive` that passes the body on in one message."""
        is_replayed = False

        async def replayed() -> dict[str, Any]:
            nonlocal is_replayed
            if is_replayed:
                return await receive()
            is_replayed = True
            return {"type": "http.request", "body": self.body, "more_body": False}

        return replayed


MANY_CONTAINERS = f"The body holds more than {exact_json.MOST_CONTAINERS:,} lists and objects. Send it in several requests."


NESTED_DEEP = f"The body is nested more than {exact_json.MOST_LEVELS} levels deep."


def depth_problem(body: bytes) -> str | None:
    """Return the reason why JSON cannot be stored: its depth."""
    return NESTED_DEEP if exact_json.is_nested_deep(body) else None


def json_problem(body: bytes) -> str | None:
    """Return the reason why JSON cannot be stored: its depth, another encoding than UTF-8, or half of a surrogate pair.
    Python's parser accepts both, but the resulting text can be neither stored nor encoded in a response.
    """
    if b"\0" in body:
        return "The body is JSON that is not encoded as UTF-8."
    if exact_json.is_nested_deep(body):
        return NESTED_DEEP
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"The body is JSON that is not encoded as UTF-8: byte {error.start}."
    if _SURROGATE.search(body) is None:
        return None
    for escape in _ESCAPES.finditer(body):
        if escape["half"] is not None:
            half = escape[0].decode()
            return f"The body holds {half}, half of a surrogate pair, at byte {escape.start()}: no character."
    return None


def _has_body(scope: Scope) -> bool:
    length = header(scope, b"content-length")
    return length not in ("", "0") or bool(header(scope, b"transfer-encoding"))


def _is_streamed(path: str) -> bool:
    return path.startswith(_STREAMED_BELOW) or path.endswith(_STREAMED_ENDS)


def _declared(scope: Scope) -> int:
    length = header(scope, b"content-length")
    return int(length[:20]) if length.isdecimal() else 0


def _is_json(scope: Scope) -> bool:
    return "json" in header(scope, b"content-type").lower()


def _too_large(most: int) -> tuple[int, str, dict[str, str]]:
    size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most >> 10} KiB"
    return 413, f"The body of this request may hold at most {size}.", {}
