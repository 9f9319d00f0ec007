"""Ids: UUIDs as 32 hexadecimal digits."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

_AHEAD = 256
"""Ids that are made at a time: the system's random bytes are read in a call that hands the interpreter to other threads."""
_ahead: list[str] = []


def new_id() -> str:
    """Return a fresh random id: a version-4 UUID as 32 hexadecimal digits."""
    while True:
        try:
            return _ahead.pop()
        except IndexError:
            _ahead.extend(_random_ids(_AHEAD))


def _random_ids(count: int) -> Iterator[str]:
    raw = bytearray(os.urandom(16 * count))
    for start in range(0, len(raw), 16):
        raw[start + 6] = raw[start + 6] & 0x0F | 0x40
        raw[start + 8] = raw[start + 8] & 0x3F | 0x80
        yield raw[start : start + 16].hex()


# A forked child's ids must be other ones than its parent's.
os.register_at_fork(after_in_child=_ahead.clear)


def derived_id(*parts: object) -> str:
    """Return the id that these parts always give, in whichever process: of a subagent's job (its caller's job, the tool),
    and of a group of its runs (the caller's group, the tool, the number of the call)."""
    return uuid.uuid5(uuid.NAMESPACE_URL, "hud.subagent:" + ":".join(map(str, parts))).hex


def dashed(identifier: str) -> str:
    """Return an id in the dashed form of HUD's REST responses."""
    return str(uuid.UUID(identifier))


def is_id(text: str) -> bool:
    """True for an id, plain or dashed."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def trace_id_of(task_run_id: str) -> str:
    """Return the trace id for a client's name of a run: the name itself if it is an id, else an id derived from it."""
    identifier = plain(task_run_id)
    if is_id(identifier):
        return identifier
    # The derivation of HUD's client for its spans.
    return uuid.uuid5(uuid.NAMESPACE_URL, f"hud.task_run:{task_run_id}").hex


def plain(identifier: str) -> str:
    """Return an id in the plain form; a string that is no UUID is returned unchanged."""
    try:
        return uuid.UUID(identifier).hex
    except ValueError:
        return identifier
