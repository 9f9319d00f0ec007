"""Teams and their projects."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from hud.errors import ConflictError, NotFoundError, PlatformError, UsageError
from hud.trace import dashed, is_id, new_id, plain
from hud_platform.store import Store, tables

DEFAULT = "default"
"""Name of the first team, which owns the data of the local user, and of every team's first project."""


@dataclass(frozen=True)
class Team:
    """Users with shared data."""

    id: str
    name: str


class Teams:
    """Teams of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def all(self) -> list[Team]:
        """Return every team, the default one first."""
        teams = tables.teams
        rows = self.store.rows(sa.select(teams).order_by(teams.c.created_at, teams.c.id))
        stored = [Team(row.id, row.name) for row in rows]
        return stored if any(team.name == DEFAULT for team in stored) else [self.default(), *stored]

    def default(self) -> Team:
        """Return the first team, which owns everything created on this machine without a server."""
        return self._ensure(tables.LOCAL_TEAM, DEFAULT)

    def find(self, name: str) -> Team:
        """Return a team by name or id. Raises `NotFoundError` where there is none."""
        for team in self.all():
            if name == team.name or plain(name) == team.id:
                return team
        raise NotFoundError(f"There is no team {name!r}.")

    def find_or_create(self, name: str) -> Team:
        """Return the team with this name, created if necessary. Raises `UsageError` for an empty name."""
        if not name.strip():
            raise UsageError("A team needs a name.")
        try:
            return self.find(name)
        except NotFoundError:
            return self._ensure(new_id(), name.strip())

    def for_key_of(self, own: str, name: str | None) -> str:
        """Return the id of the team of a new key that an admin of team `own` creates.

        Raises `PlatformError` 403 for a key of another team, unless `own` is the first one.
        """
        if name is None:
            return own
        if own == self.default().id:
            return self.find_or_create(name).id
        if any(team.id == own and team.name == name for team in self.all()):
            return own
        raise PlatformError("Only an admin of the first team makes keys for other teams.", 403)

    def _ensure(self, identifier: str, name: str) -> Team:
        row = {"id": identifier, "name": name, "created_at": datetime.now(UTC)}
        teams = tables.teams
        with suppress(IntegrityError):  # A concurrent request created it.
            self.store.write(sa.insert(teams).values(**row))
        (stored,) = self.store.rows(sa.select(teams).where(teams.c.name == name))
        return Team(stored.id, stored.name)


class Projects:
    """Projects of one team: groups of tasksets and environments, without access control."""

    def __init__(self, store: Store, team: str) -> None:
        self.store = store
        self.team = team

    def page(self, search: str | None, limit: int, offset: int) -> tuple[list[dict[str, Any]], int]:
        """Return a page of projects, the default one first, and their total number."""
        self._default()
        projects = tables.projects
        query = sa.select(projects).where(projects.c.team_id == self.team)
        if search:
            query = query.where(projects.c.name.icontains(search, autoescape=True))
        order = (projects.c.is_default.desc(), projects.c.created_at, projects.c.id)
        rows, total = self.store.page(query.order_by(*order), limit, offset)
        return [_shown(row) for row in rows], total

    def get(self, identifier: str) -> dict[str, Any]:
        """Return a project by id. Raises `NotFoundError` where there is none."""
        self._default()
        projects = tables.projects
        own_project = (projects.c.team_id == self.team, projects.c.id == plain(identifier))
        row = self.store.row(sa.select(projects).where(*own_project)) if is_id(identifier) else None
        if row is None:
            raise NotFoundError(f"There is no project {identifier!r}.")
        return _shown(row)

    def create(self, name: str, description: str) -> dict[str, Any]:
        """Create a project. Raises `UsageError` without a name, `ConflictError` if the name is taken."""
        if not name.strip():
            raise UsageError("A project needs a name.")
        self._default()
        identifier = self._insert(name.strip(), description, is_default=False)
        if identifier is None:
            raise ConflictError(f"There is already a project {name!r}; choose another name.")
        return self.get(identifier)

    def _default(self) -> None:
        projects = tables.projects
        query = sa.select(projects.c.id).where(projects.c.team_id == self.team).limit(1)
        if self.store.row(query) is None:
            self._insert(DEFAULT, "", is_default=True)

    def _insert(self, name: str, description: str, *, is_default: bool) -> str | None:
        row = {
            "id": new_id(),
            "team_id": self.team,
            "name": name,
            "description": description,
            "is_default": is_default,
            "created_at": datetime.now(UTC),
        }
        try:
            self.store.write(sa.insert(tables.projects).values(**row))
        except IntegrityError:
            return None
        return str(row["id"])


def _shown(row: sa.Row[Any]) -> dict[str, Any]:
    return {
        "id": dashed(row.id),
        "name": row.name,
        "description": row.description,
        "is_default": row.is_default,
        "capabilities": {"create": True},
        "created_at": row.created_at.isoformat(),
    }
