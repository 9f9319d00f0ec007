"""Single rows of tasksets: paged reads, checks against their environments, changes, removal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import sqlalchemy as sa

from hud.errors import ConflictError, NotFoundError, UsageError
from hud.trace import plain
from hud_platform.environments.manifests import misfits
from hud_platform.environments.registry import Environments
from hud_platform.store import Store, tables
from hud_platform.tasksets.versions import (
    Tasksets,
    locked_version,
    newest_rows,
    problems_of,
    row_of,
    write_version,
)

MOST_PROBLEMS = 50
"""Problems of an upload that are named."""

_Row = dict[str, Any]


def checked(store: Store, team: str, tasks: Sequence[_Row]) -> list[_Row]:
    """Return uploaded tasks as rows. Raises `UsageError`, with a line for each problem, for invalid tasks and for tasks that
    their environment could not start."""
    _refuse(problems_of(tasks))
    rows = [row_of(task) for task in tasks]
    manifests = Environments(store, team).manifests({row["env"] for row in rows})
    _refuse(misfits(rows, manifests))
    return rows


def _refuse(problems: Iterator[str]) -> None:
    """Raise `UsageError` with the first problems, if there are any."""
    lines = list(islice(problems, MOST_PROBLEMS + 1))
    if len(lines) > MOST_PROBLEMS:
        lines[MOST_PROBLEMS:] = [f"These are the first {MOST_PROBLEMS} problems; there are more."]
    if lines:
        raise UsageError("\n".join(lines))


class TasksetRows:
    """Rows of one taskset of a team."""

    def __init__(self, store: Store, team: str, reference: str) -> None:
        self.store = store
        self.team = team
        self.taskset = Tasksets(store, team).find(reference)
        """The taskset, as `Tasksets.find` returns it."""
        self._id = plain(self.taskset["id"])

    def slugs(self, search: str = "", version: int | None = None) -> list[str]:
        """Return the names of the rows, in order; `search` is a substring of the name."""
        rows = tables.taskset_rows
        query = newest_rows(self._id, version).with_only_columns(rows.c.slug)
        if search:
            query = query.where(rows.c.slug.icontains(search.replace("\0", ""), autoescape=True))
        return self.store.values(query)

    def named(self, slugs: Sequence[str], version: int | None = None) -> list[_Row]:
        """Return the rows with these names, in the order of the names, each with the `version` that introduced it."""
        query = newest_rows(self._id, version).where(tables.taskset_rows.c.slug.in_(slugs))
        rows_by_slug = {
            row.slug: {**json.loads(row.row), "version": row.version}
            for row in self.store.rows(query)
        }
        return [rows_by_slug[slug] for slug in slugs if slug in rows_by_slug]

    def get(self, slug: str) -> _Row:
        """Return the current version of a row. Raises `NotFoundError` for an unknown name."""
        matching = self.named([slug])
        if not matching:
            raise NotFoundError(f"Taskset {self.taskset['name']!r} has no task {slug!r}.")
        return matching[0]

    def history(self, slug: str) -> list[_Row]:
        """Return the versions of a row, newest first; `row` is None in a version that removed it."""
        rows = tables.taskset_rows
        query = (
            sa.select(rows.c.version, rows.c.row, rows.c.created_at)
            .where(rows.c.taskset_id == self._id, rows.c.slug == slug)
            .order_by(rows.c.version.desc())
        )
        return [
            {
                "version": row.version,
                "created_at": row.created_at.isoformat(),
                "row": None if row.row is None else json.loads(row.row),
            }
            for row in self.store.rows(query)
        ]

    def versions(self, limit: int, offset: int, most: int = 8) -> tuple[list[_Row], int]:
        """Return a page of the changes of each version, newest first, and the number of versions.

        `slugs` are the first `most` names of changed rows.
        """
        rows = tables.taskset_rows
        of_taskset = rows.c.taskset_id == self._id
        sums = (
            sa.select(
                rows.c.version,
                sa.func.count().label("changed"),
                sa.func.count(sa.case((rows.c.row.is_(None), 1))).label("removed"),
                sa.func.min(rows.c.created_at).label("created_at"),
            )
            .where(of_taskset)
            .group_by(rows.c.version)
            .order_by(rows.c.version.desc())
        )
        with self.store.read() as connection:
            total = connection.execute(
                sa.select(sa.func.count(rows.c.version.distinct())).where(of_taskset)
            ).scalar_one()
            counts = connection.execute(sums.limit(limit).offset(offset)).mappings().all()
            first = _first_versions(connection, self._id)
            items = []
            for row in counts:
                some = connection.execute(
                    sa.select(rows.c.slug)
                    .where(of_taskset, rows.c.version == row["version"])
                    .order_by(rows.c.position)
                    .limit(most)
                ).scalars()
                added = first.get(row["version"], 0)
                items.append(
                    {
                        "version": row["version"],
                        "created_at": row["created_at"].isoformat(),
                        "added": added,
                        "changed": row["changed"] - row["removed"] - added,
                        "removed": row["removed"],
                        "slugs": list(some),
                    }
                )
        return items, total

    def put(self, task: _Row, *, replaces: str | None, seen: int | None) -> _Row:
        """Add a row, or replace the row named `replaces`, which may have another name. Returns the row.
        `seen` is the version of the row on which the change is based. Raises `ConflictError` if the row was changed
        since, and `UsageError` as `checked` does.
        """
        row = checked(self.store, self.team, [task])[0]
        name = row["name"]
        changes: list[tuple[str, int, _Row | None]] = []
        with self.store.begin() as connection:
            version = locked_version(connection, self._id) + 1
            newest = self._known(connection)
            if name != replaces and name in newest:
                raise ConflictError(f"There is already a task {name!r}; choose another name.")
            position = max((old.position for old in newest.values()), default=-1) + 1
            if replaces is not None:
                position = self._seen(newest, replaces, seen).position
                if name != replaces:
                    changes.append((replaces, position, None))
            write_version(connection, self._id, version, [*changes, (name, position, row)])
        return {**row, "version": version}

    def bring_in(self, tasks: Sequence[_Row]) -> _Row:
        """Add rows and replace those of the same names, as an upload does. Raises `UsageError` as `checked` does."""
        rows = checked(self.store, self.team, tasks)
        sets = Tasksets(self.store, self.team)
        return sets.upload("", rows, taskset_id=self.taskset["id"], project_id=None)

    def remove(self, slug: str, seen: int | None) -> int:
        """Remove a row; older versions keep it. Returns the new version."""
        with self.store.begin() as connection:
            version = locked_version(connection, self._id) + 1
            old = self._seen(self._known(connection), slug, seen)
            write_version(connection, self._id, version, [(slug, old.position, None)])
        return version

    def _known(self, connection: sa.Connection) -> dict[str, Any]:
        rows = tables.taskset_rows
        columns = (rows.c.slug, rows.c.version, rows.c.position)
        query = newest_rows(self._id).with_only_columns(*columns)
        return {row.slug: row for row in connection.execute(query)}

    def _seen(self, newest: dict[str, Any], slug: str, seen: int | None) -> Any:
        old = newest.get(slug)
        if old is None:
            raise NotFoundError(f"Taskset {self.taskset['name']!r} has no task {slug!r}.")
        if seen is not None and old.version != seen:
            raise ConflictError(f"Task {slug!r} was changed in the meantime; reload it.")
        return old


def _first_versions(connection: sa.Connection, identifier: str) -> dict[int, int]:
    """Return the number of new rows of each version."""
    rows = tables.taskset_rows
    first = (
        sa.select(rows.c.slug, sa.func.min(rows.c.version).label("version"))
        .where(rows.c.taskset_id == identifier)
        .group_by(rows.c.slug)
        .subquery()
    )
    query = sa.select(first.c.version, sa.func.count()).group_by(first.c.version)
    return {int(version): int(count) for version, count in connection.execute(query)}
