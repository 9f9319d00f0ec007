"""Saved views: lists with their filters, by name, for every member of a team."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlsplit

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from hud.errors import ConflictError, NotFoundError, UsageError
from hud.trace import new_id, plain
from hud_platform.store import Store, tables

LISTS = ("/jobs", "/search")
"""Pages whose filters can be saved."""
LONGEST_NAME = 60
LONGEST_ADDRESS = 2_000
MOST_VIEWS = 100
"""Views of a team."""


def saved_views(store: Store, team: str, path: str) -> list[dict[str, str]]:
    """Return the team's views of a list, by name: `id`, `name` and `address`."""
    views = tables.saved_views
    query = sa.select(views.c.id, views.c.name, views.c.address).where(
        views.c.team_id == team, views.c.address.startswith(f"{path}?", autoescape=True)
    )
    rows = store.rows(query.order_by(views.c.name).limit(MOST_VIEWS))
    return [{"id": row.id, "name": row.name, "address": row.address} for row in rows]


def save_view(store: Store, team: str, name: str, address: str) -> None:
    """Save a list's address.

    Raises `ConflictError` for a name that is taken, and `UsageError` for no list, for no name, and where the team has
    `MOST_VIEWS`.
    """
    parsed = urlsplit(address)
    if parsed.scheme or parsed.netloc or parsed.path not in LISTS or not parsed.query:
        raise UsageError(f"A view is a list with filters, of {' or '.join(LISTS)}.")
    if not 0 < len(name.strip()) <= LONGEST_NAME or len(address) > LONGEST_ADDRESS:
        raise UsageError(f"A view needs a name of at most {LONGEST_NAME} characters.")
    views = tables.saved_views
    if store.value(sa.select(sa.func.count()).where(views.c.team_id == team)) >= MOST_VIEWS:
        raise UsageError(
            f"A team has at most {MOST_VIEWS} saved views; remove one that nobody uses."
        )
    row = {
        "id": new_id(),
        "team_id": team,
        "name": name.strip(),
        "address": address,
        "created_at": datetime.now(UTC),
    }
    try:
        store.write(sa.insert(tables.saved_views).values(**row))
    except IntegrityError:
        raise ConflictError(
            f"There is a view {name.strip()!r} already; choose another name."
        ) from None


def remove_view(store: Store, team: str, view_id: str) -> str:
    """Remove a view; return the path of its list. Raises `NotFoundError` where there is none."""
    views = tables.saved_views
    theirs = (views.c.id == plain(view_id), views.c.team_id == team)
    address = store.value(sa.select(views.c.address).where(*theirs))
    if address is None:
        raise NotFoundError(f"There is no view {view_id!r}.")
    store.write(sa.delete(views).where(*theirs))
    return urlsplit(str(address)).path
