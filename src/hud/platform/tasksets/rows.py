"""Rows of tasksets, one by one: read in pages, checked against their environments, changed, removed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hud.errors import ConflictError, NotFoundError, UsageError
from hud.platform.environments.manifests import misfits
from hud.platform.environments.registry import Environments
from hud.platform.store import tables
from hud.platform.tasksets.versions import Tasksets, problems_of, row_of
from hud.trace import plain

if TYPE_CHECKING:
    from hud.platform.store import Store

_Row = dict[str, Any]


def checked(store: Store, team: str, tasks: Sequence[_Row]) -> list[_Row]:
    """Return uploaded tasks as rows. Raises `UsageError`, a line for each problem, where their form is wrong or their
    environment could not start them."""
    problems = list(problems_of(tasks))
    if problems:
        raise UsageError("\n".join(problems))
    rows = [row_of(task) for task in tasks]
    manifests = Environments(store, team).manifests({row["env"] for row in rows})
    problems = list(misfits(rows, manifests))
    if problems:
        raise UsageError("\n".join(problems))
    return rows


class TasksetRows:
    """The rows of one taskset of a team."""

    def __init__(self, store: Store, team: str, reference: str) -> None:
        self.store = store
        self.team = team
        self.taskset = Tasksets(store, team).find(reference)
        """The taskset, as `Tasksets.find` returns it."""
        self._id = plain(self.taskset["id"])

    def slugs(self, search: str = "", version: int | None = None) -> list[str]:
        """Return the names of the rows, in order; `search` is a part of one."""
        newest = self._newest(version)
        query = sa.select(newest.c.slug).order_by(newest.c.position)
        if search:
            query = query.where(newest.c.slug.icontains(search.replace("\0", ""), autoescape=True))
        with self.store.read() as connection:
            return list(connection.execute(query).scalars())

    def named(self, slugs: Sequence[str], version: int | None = None) -> list[_Row]:
        """Return the rows of these names, in the order of the names; each with the `version` that it came with."""
        newest = self._newest(version)
        query = sa.select(newest.c.slug, newest.c.version, newest.c.row)
        with self.store.read() as connection:
            rows = connection.execute(query.where(newest.c.slug.in_(slugs))).all()
        found = {row.slug: {**json.loads(row.row), "version": row.version} for row in rows}
        return [found[slug] for slug in slugs if slug in found]

    def get(self, slug: str) -> _Row:
        """Return one row as it is now. Raises `NotFoundError` where there is none."""
        found = self.named([slug])
        if not found:
            raise NotFoundError(f"Taskset {self.taskset['name']!r} has no task {slug!r}.")
        return found[0]

    def history(self, slug: str) -> list[_Row]:
        """Return a row as it was in each version that changed it, newest first; `row` is None where it was removed."""
        rows = tables.taskset_rows
        query = (
            sa.select(rows.c.version, rows.c.row, rows.c.created_at)
            .where(rows.c.taskset_id == self._id, rows.c.slug == slug)
            .order_by(rows.c.version.desc())
        )
        with self.store.read() as connection:
            found = connection.execute(query).all()
        return [
            {
                "version": row.version,
                "created_at": row.created_at.isoformat(),
                "row": None if row.row is None else json.loads(row.row),
            }
            for row in found
        ]

    def versions(self, limit: int, offset: int, most: int = 8) -> tuple[list[_Row], int]:
        """Return a page of what each version changed, newest first, and how many versions there are.

        `slugs` are the first `most` names of those that changed.
        """
        rows = tables.taskset_rows
        mine = rows.c.taskset_id == self._id
        sums = (
            sa.select(
                rows.c.version,
                sa.func.count().label("changed"),
                sa.func.count(sa.case((rows.c.row.is_(None), 1))).label("removed"),
                sa.func.min(rows.c.created_at).label("created_at"),
            )
            .where(mine)
            .group_by(rows.c.version)
            .order_by(rows.c.version.desc())
        )
        with self.store.read() as connection:
            total = connection.execute(
                sa.select(sa.func.count(rows.c.version.distinct())).where(mine)
            ).scalar_one()
            found = connection.execute(sums.limit(limit).offset(offset)).mappings().all()
            first = _first_versions(connection, self._id)
            items = []
            for row in found:
                some = connection.execute(
                    sa.select(rows.c.slug)
                    .where(mine, rows.c.version == row["version"])
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
        """Add a row, or put it in the place of the one named `replaces`, which may have another name.

        `seen` is the version of the row that the change was made from: a `ConflictError` says that somebody else
        changed it since. Returns the row. Raises `UsageError` as `checked` does.
        """
        row = checked(self.store, self.team, [task])[0]
        name = row["name"]
        with self.store.begin() as connection:
            version = self._next_version(connection)
            known = self._known(connection)
            if name != replaces and name in known:
                raise ConflictError(f"There is already a task {name!r}; choose another name.")
            position = max((old.position for old in known.values()), default=-1) + 1
            if replaces is not None:
                old = self._seen(known, replaces, seen)
                position = old.position
                if name != replaces:
                    self._write(connection, replaces, version, position, None)
            self._write(connection, name, version, position, row)
        return {**row, "version": version}

    def bring_in(self, tasks: Sequence[_Row]) -> _Row:
        """Add rows and replace those of the same names, as an upload does. Raises `UsageError` as `checked` does."""
        rows = checked(self.store, self.team, tasks)
        sets = Tasksets(self.store, self.team)
        return sets.upload("", rows, taskset_id=self.taskset["id"], project_id=None)

    def remove(self, slug: str, seen: int | None) -> int:
        """Remove a row; older versions keep it. Returns the new version."""
        with self.store.begin() as connection:
            version = self._next_version(connection)
            old = self._seen(self._known(connection), slug, seen)
            self._write(connection, slug, version, old.position, None)
        return version

    # -- inside -------------------------------------------------------------------------------------

    def _newest(self, version: int | None) -> sa.Subquery:
        rows = tables.taskset_rows
        last = sa.select(rows.c.slug, sa.func.max(rows.c.version).label("version")).where(
            rows.c.taskset_id == self._id
        )
        if version is not None:
            last = last.where(rows.c.version <= version)
        newest = last.group_by(rows.c.slug).subquery()
        return (
            sa.select(rows)
            .join(newest, sa.and_(rows.c.slug == newest.c.slug, rows.c.version == newest.c.version))
            .where(rows.c.taskset_id == self._id, rows.c.row.is_not(None))
            .subquery()
        )

    def _known(self, connection: sa.Connection) -> dict[str, Any]:
        newest = self._newest(None)
        query = sa.select(newest.c.slug, newest.c.version, newest.c.position)
        return {row.slug: row for row in connection.execute(query)}

    def _seen(self, known: dict[str, Any], slug: str, seen: int | None) -> Any:
        old = known.get(slug)
        if old is None:
            raise NotFoundError(f"Taskset {self.taskset['name']!r} has no task {slug!r}.")
        if seen is not None and old.version != seen:
            raise ConflictError(f"Task {slug!r} was changed meanwhile; look at it again.")
        return old

    def _next_version(self, connection: sa.Connection) -> int:
        """Count the taskset's version up. Held to the end of the transaction: changes follow one another."""
        sets = tables.tasksets
        mine = sets.c.id == self._id
        before = connection.execute(sa.select(sets.c.version).where(mine).with_for_update())
        version = int(before.scalar_one()) + 1
        changed = {"version": version, "updated_at": datetime.now(UTC)}
        connection.execute(sa.update(sets).where(mine).values(**changed))
        return version

    def _write(
        self, connection: sa.Connection, slug: str, version: int, position: int, row: _Row | None
    ) -> None:
        content = None if row is None else json.dumps(row, ensure_ascii=False).encode()
        connection.execute(
            sa.insert(tables.taskset_rows).values(
                taskset_id=self._id,
                slug=slug,
                version=version,
                position=position,
                row=content,
                created_at=datetime.now(UTC),
            )
        )


def _first_versions(connection: sa.Connection, identifier: str) -> dict[int, int]:
    """Return how many rows each version brought that had never been there."""
    rows = tables.taskset_rows
    first = (
        sa.select(rows.c.slug, sa.func.min(rows.c.version).label("version"))
        .where(rows.c.taskset_id == identifier)
        .group_by(rows.c.slug)
        .subquery()
    )
    query = sa.select(first.c.version, sa.func.count()).group_by(first.c.version)
    return {int(version): int(count) for version, count in connection.execute(query)}
