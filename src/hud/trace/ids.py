"""Ids: 32 hexadecimal digits, the same thing as a dashed UUID."""

from __future__ import annotations

import os
import uuid


def new_id() -> str:
    """Return a fresh random id: a version-4 UUID as 32 hexadecimal digits."""
    # uuid4() costs three times as much; ids are minted several times for each rollout.
    raw = bytearray(os.urandom(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return raw.hex()


def derived_id(*parts: object) -> str:
    """Return the id that these parts always give, in whichever process: of a subagent's job (its caller's job, the tool),
    and of a group of its runs (the caller's group, the tool, the number of the call)."""
    return uuid.uuid5(uuid.NAMESPACE_URL, "hud.subagent:" + ":".join(map(str, parts))).hex


def dashed(identifier: str) -> str:
    """Return an id in the dashed form that HUD's REST answers use."""
    return str(uuid.UUID(identifier))


def is_id(text: str) -> bool:
    """True for an id, in the plain form or the dashed one."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def trace_id_of(task_run_id: str) -> str:
    """Return the trace that a client's own name for a run stands for: the id itself, or one made of the name."""
    identifier = plain(task_run_id)
    if is_id(identifier):
        return identifier
    # As HUD's client names the trace of its spans.
    return uuid.uuid5(uuid.NAMESPACE_URL, f"hud.task_run:{task_run_id}").hex


def plain(identifier: str) -> str:
    """Return an id in the plain form; a string that is no UUID comes back unchanged."""
    try:
        return uuid.UUID(identifier).hex
    except ValueError:
        return identifier
