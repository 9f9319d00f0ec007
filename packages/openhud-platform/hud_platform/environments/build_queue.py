"""Queue of builds: archives of source that become environments which can be run. A leased queue, the oldest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from hud import exact_json
from hud.durable_files import PRIVATE, write_file
from hud.errors import ConflictError, NotFoundError
from hud.trace import dashed, new_id, plain
from hud.trace.recorded_time import seconds_between
from hud_platform.environments.registry import (
    SUCCEEDED,
    Environments,
    find_build,
    newest_build,
)
from hud_platform.leases.leased_queue import Lease, LeasedQueue, Which
from hud_platform.store import Store, tables

WAITING, QUEUED, BUILDING, FAILED = "WAITING", "QUEUED", "IN_PROGRESS", "FAILED"
LOST = "It ended the server's builder three times and is not tried again."


@dataclass(frozen=True)
class Build:
    """A build that a worker holds."""

    lease: Lease
    team_id: str
    environment_id: str
    archive: str
    options: dict[str, Any]

    @property
    def id(self) -> str:
        return self.lease.id


class Builds(LeasedQueue[Build]):
    """The builds of one store."""

    table = tables.builds
    waiting, running = QUEUED, BUILDING
    lease_seconds = 60.0
    most_attempts = 3

    def __init__(self, store: Store, home: Path) -> None:
        super().__init__(store)
        self.home = home

    def begin(self, team: str) -> str:
        """Make a build that waits for its archive; returns its id."""
        build_id, now = new_id(), datetime.now(UTC)
        row = {"id": build_id, "team_id": team, "status": WAITING, "options": {}, "created_at": now}
        self.store.write(sa.insert(tables.builds).values(**row))
        return build_id

    def awaited(self, build_id: str) -> None:
        """Raise `NotFoundError` unless a build still waits for its archive."""
        builds = tables.builds
        query = sa.select(builds.c.status).where(builds.c.id == plain(build_id))
        if self.store.value(query) != WAITING:
            raise NotFoundError(f"No build {build_id!r} waits for an archive.")

    def received(self, build_id: str, archive: str) -> None:
        """Note where the archive of a build lies; a later one takes its place until the build is triggered.

        Raises `NotFoundError` where no such build waits for one.
        """
        builds = tables.builds
        waiting = (builds.c.id == plain(build_id), builds.c.status == WAITING)
        if self.store.write(sa.update(builds).where(*waiting).values(archive=archive)) != 1:
            raise NotFoundError(f"No build {build_id!r} waits for an archive.")

    def trigger(
        self,
        team: str,
        build_id: str,
        name: str,
        *,
        registry_id: str | None,
        project_id: str | None,
        options: dict[str, Any],
        private: dict[str, dict[str, str]],
    ) -> dict[str, Any]:
        """Queue a build. `private` (environment variables, build secrets) is kept in a file, not in the store.

        Raises `ConflictError` for a build without an archive and for one that was started already.
        """
        row = find_build(self.store, team, build_id)
        if row.status != WAITING or row.archive is None:
            raise ConflictError(
                f"Build {build_id!r} has no archive yet; PUT it to its upload URL first."
                if row.status == WAITING
                else f"Build {build_id!r} was started already."
            )
        environments = Environments(self.store, team)
        if registry_id is not None:
            environment_id = plain(environments.find(registry_id)["id"])
        else:
            environment_id = environments.find_or_create(name, project_id)
        self._write_private(row.id, private)
        builds = tables.builds
        waiting = (builds.c.id == row.id, builds.c.status == WAITING)
        queued = {"status": QUEUED, "environment_id": environment_id}
        options = {**options, "name": name}
        if (
            self.store.write(sa.update(builds).where(*waiting).values(**queued, options=options))
            != 1
        ):
            raise ConflictError(f"Build {build_id!r} was started already.")
        return {"id": dashed(row.id), "registry_id": dashed(environment_id)}

    def status(self, team: str, build_id: str) -> dict[str, Any]:
        """Return what there is to say of a build."""
        row = find_build(self.store, team, build_id)
        manifest = row.manifest or {}
        name = row.options.get("name")
        return {
            "id": dashed(row.id),
            # Clients take every word that they do not know for an end.
            "status": row.status if row.status in (SUCCEEDED, FAILED) else BUILDING,
            "version": None if row.version is None else str(row.version),
            "uri": None if row.version is None else f"{name}:{row.version}",
            "image_name": name,
            "registry_name": name,
            "error_message": row.error,
            "duration_seconds": seconds_between(row.started_at, row.ended_at),
            "created_at": row.created_at.isoformat(),
            "manifest": {
                "tasks": manifest.get("tasks", []),
                "capabilities": manifest.get("capabilities", []),
            },
            "lock": {
                "tasks": [
                    {"slug": task["id"], "task": task["id"], "args": {}}
                    for task in manifest.get("tasks", [])
                ]
            },
        }

    def lines(self, build_id: str, beyond: int) -> list[tuple[int, str, datetime]]:
        """Return the log's lines after number `beyond`."""
        lines = tables.build_lines
        query = (
            sa.select(lines)
            .where(lines.c.build_id == plain(build_id), lines.c.number > beyond)
            .order_by(lines.c.number)
        )
        return [(row.number, row.text, row.created_at) for row in self.store.rows(query)]

    def item(self, row: sa.Row[Any], lease: Lease) -> Build:
        return Build(lease, row.team_id, row.environment_id, row.archive, row.options)

    def end_lost(self, connection: sa.Connection, which: Which) -> None:
        builds, lines = tables.builds, tables.build_lines
        now = datetime.now(UTC)
        for build_id in connection.execute(sa.select(builds.c.id).where(*which)).scalars().all():
            of_build = lines.c.build_id == build_id
            last = connection.execute(
                sa.select(sa.func.max(lines.c.number)).where(of_build)
            ).scalar()
            line = {"build_id": build_id, "number": (last or 0) + 1, "text": LOST}
            connection.execute(sa.insert(lines).values(**line, created_at=now))
            self._private_path(build_id).unlink(missing_ok=True)
        ended = {"status": FAILED, "error": LOST, "ended_at": now}
        connection.execute(sa.update(builds).where(*which).values(**ended))

    def say(self, build: Build, first: int, lines: list[str]) -> None:
        """Append lines to a build's log, the first with this number."""
        now = datetime.now(UTC)
        rows = [
            {"build_id": build.id, "number": first + place, "text": text, "created_at": now}
            for place, text in enumerate(lines)
        ]
        if rows:
            with self.store.begin() as connection:
                connection.execute(sa.insert(tables.build_lines), rows)

    def clear_log(self, build: Build) -> None:
        """Forget what an earlier attempt wrote."""
        lines = tables.build_lines
        self.store.write(sa.delete(lines).where(lines.c.build_id == build.id))

    def succeed(self, build: Build, folder: Path, manifest: dict[str, Any]) -> int:
        """Make a build the environment's newest version; returns the version. Raises `ConflictError` if taken over."""
        builds, environments = tables.builds, tables.environments
        ended = {"status": SUCCEEDED, "folder": str(folder), "manifest": manifest}
        with self.store.begin() as connection:
            # Held until the end, so that two builds never get one version.
            of_build = environments.c.id == build.environment_id
            connection.execute(sa.select(environments.c.id).where(of_build).with_for_update())
            newest = connection.execute(
                sa.select(sa.func.max(builds.c.version)).where(
                    builds.c.environment_id == build.environment_id
                )
            ).scalar()
            version = int(newest or 0) + 1
            taken = self.end(connection, build.lease, **ended, version=version)
        if not taken:
            raise ConflictError("Another builder took this build over.")
        self._private_path(build.id).unlink(missing_ok=True)
        return version

    def fail(self, build: Build, reason: str) -> None:
        """End a build with an error; nothing changes where its lease is lost."""
        with self.store.begin() as connection:
            taken = self.end(connection, build.lease, status=FAILED, error=reason)
        if taken:
            self._private_path(build.id).unlink(missing_ok=True)

    def newest(self, build: Build) -> Path | None:
        """Return the folder of the environment's newest build that succeeded."""
        folder = self.store.value(
            newest_build(build.environment_id).with_only_columns(tables.builds.c.folder)
        )
        return None if folder is None else Path(folder)

    def private(self, build: Build) -> dict[str, dict[str, str]]:
        """Return a build's variables and secrets, while it is being built."""
        path = self._private_path(build.id)
        private: dict[str, dict[str, str]] = (
            exact_json.loads(path.read_bytes()) if path.exists() else {}
        )
        return private

    def _private_path(self, build_id: str) -> Path:
        return self.home / "builds" / f"{build_id}.private.json"

    def _write_private(self, build_id: str, private: dict[str, dict[str, str]]) -> None:
        path = self._private_path(build_id)
        write_file(path, exact_json.dumps(private), PRIVATE)
