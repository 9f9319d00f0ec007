"""Audit log: actions with their callers and times. Written by routes of the API and of pages; append-only."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal, get_args

import sqlalchemy as sa

from hud.trace import new_id
from hud_platform.access.identity import Identity
from hud_platform.store import Store, tables

Action = Literal[
    "signed in",
    "key created",
    "key revoked",
    "pass created",
    "pass revoked",
    "node cordoned",
    "node opened",
    "node drained",
    "secret set",
    "secret removed",
    "head moved",
    "head promoted",
    "head forced",
    "prompt added",
    "training launched",
    "taskset changed",
    "environment built",
    "model forked",
    "model removed",
]
ACTIONS: tuple[Action, ...] = get_args(Action)
_LONGEST = 500
"""Maximum length of a subject: clients choose the names."""


class AuditLog:
    """The audit log, for the actions of one caller."""

    def __init__(self, store: Store, who: Identity) -> None:
        self.store = store
        self.who = who

    def note(self, action: Action, subject: str, **details: Any) -> None:
        """Record an action of the caller. `details` are plain data without secrets."""
        row = {
            "id": new_id(),
            "team_id": self.who.team_id,
            "key_id": self.who.key_id,
            "action": action,
            "subject": subject.replace("\0", "")[:_LONGEST],
            "details": details,
            "created_at": datetime.now(UTC),
        }
        self.store.write(sa.insert(tables.audit).values(**row))


def page(
    store: Store,
    team: str,
    limit: int,
    offset: int,
    *,
    action: str | None = None,
    key_id: str | None = None,
) -> tuple[list[dict[str, Any]], int]:
    """Return a page of a team's log, newest first, and the number of entries.
    `who` in an entry is the name of the key; None for requests without a key.
    """
    audit, keys = tables.audit, tables.keys
    wanted = [audit.c.team_id == team]
    if action is not None:
        wanted.append(audit.c.action == action)
    if key_id is not None:
        wanted.append(audit.c.key_id == key_id)
    query = (
        sa.select(audit, keys.c.name.label("who"))
        .outerjoin(keys, keys.c.id == audit.c.key_id)
        .where(*wanted)
        .order_by(audit.c.created_at.desc(), audit.c.id)
    )
    rows, total = store.page(query, limit, offset)
    return [_shown(row) for row in rows], total


def _shown(row: Any) -> dict[str, Any]:
    shown = ("id", "key_id", "who", "action", "subject", "details")
    return {name: getattr(row, name) for name in shown} | {"created_at": row.created_at.isoformat()}
