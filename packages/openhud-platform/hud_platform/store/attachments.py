"""Large attachments of steps (screenshots, files): stored as blobs, deduplicated by content, restored on reading."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from hud import exact_json
from hud.errors import NotFoundError
from hud_platform.store.blobs import Blobs

LARGE_CHARACTERS = 32_768
"""Minimum length of an attachment's base64 text for a blob; shorter ones stay in their step."""
_MARK = "hud.blob"


def detach(blobs: Blobs, team: str, payload: bytes) -> bytes:
    """Return a step's JSON with every large attachment replaced by the name of its blob.

    Names that a client wrote itself are removed: a short step would name one blob many times, and be read as many copies.
    """
    named = has_attachments(payload)
    if not named and (len(payload) < LARGE_CHARACTERS or b'"data"' not in payload):
        return payload
    step = exact_json.loads(payload)
    detached = False
    for block in _objects(step):
        if named and block.pop(_MARK, None) is not None:
            detached = True
        data = block.get("data")
        if isinstance(data, str) and len(data) >= LARGE_CHARACTERS and data.isascii():
            block[_MARK] = store_attachment(blobs, team, data)
            del block["data"]
            detached = True
    return exact_json.dumps(step) if detached else payload


def store_attachment(blobs: Blobs, team: str, data: str) -> str:
    """Store the base64 text of an attachment, and return the name of its blob."""
    # Named by a hash of its content: identical screenshots share a blob.
    key = f"{team}/attachments/{hashlib.sha256(data.encode()).hexdigest()}"
    if not blobs.exists(key):
        blobs.put(key, data.encode())
    return key


def attach(blobs: Blobs, team: str, step: Any) -> int:
    """Restore the attachments of a team's step, in place; return their characters. One with a missing or damaged blob stays empty."""
    size = 0
    for block in _objects(step):
        name = block.pop(_MARK, None)
        # Earlier releases kept names that a client wrote itself: names resolve only within its team.
        if isinstance(name, str) and name.startswith(f"{team}/attachments/"):
            try:
                block["data"] = blobs.get(name).decode("ascii")
            except (NotFoundError, UnicodeDecodeError):
                block["data"] = ""
            size += len(block["data"])
    return size


def has_attachments(payload: bytes) -> bool:
    """Return True if a step has attachments to restore."""
    return _MARK.encode() in payload


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a JSON value, each before those in it."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _objects(item)
