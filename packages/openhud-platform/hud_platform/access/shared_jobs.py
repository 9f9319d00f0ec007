"""Read-only links to jobs: signed, for a number of days, and revocable one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from hud.errors import NotFoundError, PlatformError, UsageError
from hud.trace import new_id, plain
from hud_platform.access.identity import Identity
from hud_platform.access.signed_links import SignedLinks
from hud_platform.store import Store, tables

PURPOSE = "shared job"
DAYS = 30
MOST_DAYS = 365


class SharedJobs:
    """The read-only links of jobs."""

    def __init__(self, store: Store, links: SignedLinks) -> None:
        self.store, self._links = store, links

    def share(self, who: Identity, job_id: str, days: int = DAYS) -> dict[str, Any]:
        """Make a link to a job of the caller's team; return it, with its `token`.

        Raises `UsageError` for a number of days that is not allowed.
        """
        if not 1 <= days <= MOST_DAYS:
            raise UsageError(f"A link is valid for 1 to {MOST_DAYS} days, not {days}.")
        now = datetime.now(UTC)
        row = {
            "id": new_id(),
            "team_id": who.team_id,
            "job_id": job_id,
            "key_id": who.key_id,
            "created_at": now,
            "expires_at": now + timedelta(days=days),
        }
        self.store.write(sa.insert(tables.shared_links).values(**row))
        return self._shown({**row, "revoked_at": None})

    def of_job(self, team: str, job_id: str) -> list[dict[str, Any]]:
        """Return the links to a job that are neither revoked nor expired, the newest first."""
        links = tables.shared_links
        query = sa.select(links).where(
            links.c.team_id == team,
            links.c.job_id == job_id,
            links.c.revoked_at.is_(None),
            links.c.expires_at > datetime.now(UTC),
        )
        rows = self.store.rows(query.order_by(links.c.created_at.desc(), links.c.id))
        return [self._shown(dict(row._mapping)) for row in rows]

    def revoke(self, team: str, link_id: str) -> None:
        """End a link. Raises `NotFoundError` for one of no such id."""
        links = tables.shared_links
        statement = sa.update(links).where(links.c.id == plain(link_id), links.c.team_id == team)
        if not self.store.write(statement.values(revoked_at=datetime.now(UTC))):
            raise NotFoundError(f"There is no link {link_id!r}.")

    def job_of(self, token: str) -> tuple[str, str]:
        """Return the team and the job of a token. Raises `NotFoundError` or `PlatformError` 403 where it is not valid."""
        link_id = self._links.subject(PURPOSE, token)
        links = tables.shared_links
        row = self.store.row(sa.select(links).where(links.c.id == link_id))
        if row is None or row.revoked_at is not None:
            raise PlatformError("This link was revoked; ask for a new one.", 403)
        return row.team_id, row.job_id

    def _shown(self, row: dict[str, Any]) -> dict[str, Any]:
        who = Identity(row["team_id"], frozenset(), key_id=row["key_id"])
        until = row["expires_at"].timestamp()
        return {
            "id": row["id"],
            "job_id": row["job_id"],
            "created_at": row["created_at"].isoformat(),
            "expires_at": row["expires_at"].isoformat(),
            "token": self._links.make(PURPOSE, row["id"], who, until),
        }
