"""Registry of environments: names, builds, and runnable builds."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from hud.durable_files import read_object
from hud.errors import NotFoundError, UsageError
from hud.trace import dashed, is_id, new_id, plain
from hud_platform.access.teams import Projects
from hud_platform.store import Store, tables
from hud_platform.store.queries import Query, Row

SUCCEEDED = "SUCCEEDED"
VARIABLES = "variables.json"
"""File next to a build's source with the environment's variables, readable by the server only."""


@dataclass(frozen=True)
class RunnableEnvironment:
    """Build that can be started."""

    build_id: str
    name: str
    version: int
    folder: Path
    source: Path
    """Source file that defines the environment."""
    python: Path
    """Interpreter with the environment's requirements."""
    variables: dict[str, str] = field(default_factory=dict, repr=False)
    image: str | None = None
    """Container image that serves the environment; the interpreter is then unused. None: built without an image."""

    def shown(self) -> dict[str, Any]:
        """Launch data for `hud.fleet.environments`."""
        return {
            "build_id": self.build_id,
            "source": str(self.source),
            "python": str(self.python),
            "image": self.image,
            "variables": self.variables,
        }

    def fetched(self) -> dict[str, Any]:
        """Plain data, as `hud.fleet.environments` starts the build on another machine, which fetches it."""
        return {**self.shown(), "source": None, "python": None}


class Environments:
    """Environments of one team."""

    def __init__(self, store: Store, team: str) -> None:
        self.store = store
        self.team = team

    def page(self, search: str | None, limit: int, offset: int) -> tuple[list[dict[str, Any]], int]:
        """Return a page of environments, newest first, and their total number."""
        environments = tables.environments
        query = sa.select(environments).where(environments.c.team_id == self.team)
        if search:
            # No name contains such text, so the search has no results.
            sought = _slug(search)
            query = query.where(
                environments.c.name.contains(sought, autoescape=True) if sought else sa.false()
            )
        newest = query.order_by(environments.c.created_at.desc(), environments.c.id)
        rows, total = self.store.page(newest, limit, offset)
        return [self._shown(row) for row in rows], total

    def find(self, reference: str) -> dict[str, Any]:
        """Return an environment by id or name. Raises `NotFoundError` where there is none."""
        return self._shown(self._row(reference))

    def find_or_create(self, name: str, project_id: str | None) -> str:
        """Return the id of the environment with this name, created if necessary."""
        if project_id is not None:
            Projects(self.store, self.team).get(project_id)
        row = {
            "id": new_id(),
            "team_id": self.team,
            "project_id": None if project_id is None else plain(project_id),
            "name": normalized(name),
            "created_at": datetime.now(UTC),
        }
        try:
            self.store.write(sa.insert(tables.environments).values(**row))
        except IntegrityError:
            return plain(self.find(name)["id"])
        return str(row["id"])

    def manifests(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        """Return the newest build's manifest of each existing environment, by the given names."""
        manifests = {}
        for name in names:
            try:
                manifest = self.find(name)["manifest"]
            except NotFoundError:
                continue
            if manifest is not None:
                manifests[name] = manifest
        return manifests

    def runnable(self, reference: str) -> RunnableEnvironment:
        """Return an environment's newest successful build. Raises `NotFoundError` if there is none."""
        environment = self._row(reference)
        row = self.store.row(newest_build(environment.id))
        if row is None:
            raise NotFoundError(
                f"No build of environment {environment.name!r} has succeeded yet; see hud deploy."
            )
        folder = Path(row.folder)
        return RunnableEnvironment(
            build_id=row.id,
            name=row.manifest["name"],
            version=row.version,
            folder=folder,
            source=folder / "source" / row.manifest.get("entry", ""),
            python=interpreter(folder),
            image=row.manifest.get("image"),
            variables=variables_of(folder),
        )

    def _row(self, reference: str) -> Row:
        environments = tables.environments
        wanted = [environments.c.id == plain(reference)] * is_id(reference)
        wanted.append(environments.c.name == _slug(reference))
        for condition in wanted:
            row = self.store.row(
                sa.select(environments).where(environments.c.team_id == self.team, condition)
            )
            if row is not None:
                return row
        raise NotFoundError(f"There is no environment {reference!r}. Bring one: hud deploy FOLDER")

    def _shown(self, row: Row) -> dict[str, Any]:
        newest = self.store.row(newest_build(row.id))
        build = (
            None if newest is None else {"id": dashed(newest.id), "version": str(newest.version)}
        )
        return {
            "id": dashed(row.id),
            "name": row.name,
            "project_id": None if row.project_id is None else dashed(row.project_id),
            "latest_build": build,
            "manifest": None if newest is None else newest.manifest,
            "created_at": row.created_at.isoformat(),
        }


def variables_of(folder: Path) -> dict[str, str]:
    """Return the environment variables of a build's folder. Raises `StoreError` for a damaged file."""
    cure = "Remove the file, then deploy the environment again with its variables."
    return read_object(folder / VARIABLES, cure)


def interpreter(folder: Path) -> Path:
    """Return the interpreter of a build's folder; the server's own if the build has no virtual environment."""
    own = folder / "venv" / "bin" / "python"
    return own if own.exists() else Path(sys.executable)


def normalized(name: str) -> str:
    """Return a registered name: lower case, digits and single dashes. Raises `UsageError` if it is empty."""
    text = _slug(name)
    if not text:
        raise UsageError(
            f"{name!r} is not a valid name for an environment; use letters, digits and dashes."
        )
    return text


def _slug(name: str) -> str:
    text = re.sub(r"[^a-z0-9-]", "", re.sub(r"[ _]", "-", name.strip().lower()))
    return re.sub(r"-+", "-", text).strip("-")


def newest_build(environment_id: str) -> Query:
    """Return the query for an environment's newest successful build."""
    builds = tables.builds
    succeeded = (builds.c.environment_id == environment_id, builds.c.status == SUCCEEDED)
    return sa.select(builds).where(*succeeded).order_by(builds.c.version.desc()).limit(1)


def find_build(store: Store, team: str, build_id: str) -> Row:
    """Return the row of one build of a team. Raises `NotFoundError` where there is none."""
    builds = tables.builds
    own_build = (builds.c.id == plain(build_id), builds.c.team_id == team)
    row = store.row(sa.select(builds).where(*own_build)) if is_id(build_id) else None
    if row is None:
        raise NotFoundError(f"There is no build {build_id!r}.")
    return row
