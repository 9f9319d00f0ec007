"""Tasksets: named rows of tasks, in versions. Uploaded rows are exported unchanged, as JSON values.
Rows keep their history: a version is the set of the newest rows at that time. Uploading never removes a row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from hud.errors import ConflictError, NotFoundError, UsageError
from hud.trace import dashed, is_id, new_id, plain
from hud.trace.json_values import is_text
from hud_platform.access.teams import Projects
from hud_platform.store import Store, tables
from hud_platform.store.queries import Query, Row

FIELDS = (
    "args",
    "validation",
    "agent_config",
    "columns",
    "runtime_config",
    "verifier",
)
"""Fields of a row that are stored unchanged."""
_Row = dict[str, Any]


class Tasksets:
    """Tasksets of one team."""

    def __init__(self, store: Store, team: str) -> None:
        self.store = store
        self.team = team

    def page(self, search: str | None, limit: int, offset: int) -> tuple[list[_Row], int]:
        """Return a page of tasksets, most recently changed first, and their total number."""
        sets = tables.tasksets
        query = sa.select(sets).where(sets.c.team_id == self.team)
        if search:
            query = query.where(sets.c.name.icontains(search.replace("\0", ""), autoescape=True))
        rows, total = self.store.page(
            query.order_by(sets.c.updated_at.desc(), sets.c.id), limit, offset
        )
        return [_shown(row) for row in rows], total

    def row_counts(self, identifiers: Sequence[str]) -> dict[str, int]:
        """Return the current number of rows of tasksets, by id."""
        rows = tables.taskset_rows
        last = (
            sa.select(rows.c.taskset_id, rows.c.slug, sa.func.max(rows.c.version).label("version"))
            .where(rows.c.taskset_id.in_(identifiers))
            .group_by(rows.c.taskset_id, rows.c.slug)
            .subquery()
        )
        same = [rows.c[name] == last.c[name] for name in ("taskset_id", "slug", "version")]
        query = (
            sa.select(rows.c.taskset_id, sa.func.count())
            .join(last, sa.and_(*same))
            .where(rows.c.row.is_not(None))
            .group_by(rows.c.taskset_id)
        )
        return {row[0]: int(row[1]) for row in self.store.rows(query)}

    def find(self, reference: str) -> _Row:
        """Return a taskset by id or name. Raises `NotFoundError` where there is none."""
        sets = tables.tasksets
        wanted = [sets.c.id == plain(reference)] * is_id(reference)
        wanted += [sets.c.name == reference] * is_text(reference)
        for condition in wanted:
            row = self.store.row(sa.select(sets).where(sets.c.team_id == self.team, condition))
            if row is not None:
                return _shown(row)
        raise NotFoundError(f"There is no taskset {reference!r}.")

    def create(self, name: str, project_id: str | None) -> _Row:
        """Create an empty taskset. Raises `UsageError` for an invalid name, `ConflictError` if it is taken."""
        if not name.strip() or not is_text(name):
            raise UsageError(f"A taskset needs a name that is text, not {name!r}.")
        if project_id is not None:
            Projects(self.store, self.team).get(project_id)
        now = datetime.now(UTC)
        row = {
            "id": new_id(),
            "team_id": self.team,
            "project_id": None if project_id is None else plain(project_id),
            "name": name.strip(),
            "version": 0,
            "created_at": now,
            "updated_at": now,
        }
        try:
            self.store.write(sa.insert(tables.tasksets).values(**row))
        except IntegrityError:
            raise ConflictError(
                f"There is already a taskset {name!r}; choose another name."
            ) from None
        return self.find(str(row["id"]))

    def export(self, reference: str, version: int | None = None) -> _Row:
        """Return a taskset with its rows, in order; `version` None: the current one."""
        taskset = self.find(reference)
        rows = self.store.rows(newest_rows(plain(taskset["id"]), version))
        return {
            "id": taskset["id"],
            "name": taskset["name"],
            "version": taskset["version"] if version is None else version,
            "tasks": [json.loads(row.row) for row in rows],
        }

    def versions(self, reference: str) -> list[_Row]:
        """Return the changes of each version, newest first."""
        identifier = plain(self.find(reference)["id"])
        rows = tables.taskset_rows
        query = (
            sa.select(rows.c.version, rows.c.slug, rows.c.created_at)
            .where(rows.c.taskset_id == identifier)
            .order_by(rows.c.version.desc(), rows.c.position)
        )
        by_version: dict[int, _Row] = {}
        for row in self.store.rows(query):
            entry = {"version": row.version, "created_at": row.created_at.isoformat(), "tasks": []}
            by_version.setdefault(row.version, entry)["tasks"].append(row.slug)
        return list(by_version.values())

    def upload(
        self, name: str, rows: Sequence[_Row], *, taskset_id: str | None, project_id: str | None
    ) -> _Row:
        """Add rows, and replace rows with the same slug and other content; creates the taskset if necessary.
        `rows` have the form of `row_of`. Returns `{taskset_id, tasks_created, tasks_updated, version}`.
        """
        taskset = self._open(name, taskset_id, project_id)
        identifier = plain(taskset["id"])
        with self.store.begin() as connection:
            before = locked_version(connection, identifier)
            newest = {row.slug: row for row in connection.execute(newest_rows(identifier))}
            changed = [row for row in rows if _differs(newest.get(row["name"]), row)]
            created = [row for row in changed if row["name"] not in newest]
            position = max((row.position for row in newest.values()), default=-1) + 1
            places = {row["name"]: position + place for place, row in enumerate(created)}
            places |= {slug: row.position for slug, row in newest.items()}
            changes = [(row["name"], places[row["name"]], row) for row in changed]
            version = before + bool(changes)
            if changes:
                write_version(connection, identifier, version, changes)
        return {
            "taskset_id": taskset["id"],
            "tasks_created": len(created),
            "tasks_updated": len(changed) - len(created),
            "version": version,
        }

    def _open(self, name: str, taskset_id: str | None, project_id: str | None) -> _Row:
        if taskset_id is not None:
            return self.find(taskset_id)
        name = name.strip()
        with suppress(NotFoundError):
            return self.find(name)
        try:
            return self.create(name, project_id)
        except ConflictError:
            return self.find(name)  # A concurrent upload created it.


def row_of(task: _Row) -> _Row:
    """Return an uploaded task in the exported form: `env` is a name, `task_id` becomes `scenario`, the rest is unchanged."""
    env = task.get("env")
    name = env.get("name") if isinstance(env, dict) else env
    row = {
        "name": task["name"],
        "env": name,
        "scenario": task.get("task_id") or task.get("scenario"),
        **{field: task.get(field) for field in FIELDS},
    }
    row["args"] = {} if row["args"] is None else row["args"]
    return row


def problems_of(tasks: Sequence[_Row]) -> Iterator[str]:
    """Yield the problems of uploaded tasks, one line each."""
    for number, task in enumerate(tasks, start=1):
        if not isinstance(task.get("name"), str) or not task["name"]:
            yield f"Task {number} has no name."
            continue
        row = row_of(task)
        name = repr(row["name"])
        if not is_text(row["name"]):
            yield f"The name {name} of task {number} is not text."
        elif not isinstance(row["env"], str) or not row["env"]:
            yield f"Task {name} names no environment."
        elif not isinstance(row["scenario"], str) or not row["scenario"]:
            yield f"Task {name} has no task_id."
        elif not isinstance(row["args"], dict):
            yield f"The args of task {name} are not an object."
        else:
            try:
                _dumped(row).encode()
            except ValueError as error:
                yield f"Task {name} holds what JSON cannot: {error}."
    counts = Counter(task["name"] for task in tasks if isinstance(task.get("name"), str))
    for slug, count in counts.items():
        if count > 1 and slug:
            yield f"{count} tasks are called {slug!r}; names must be unique."


def newest_rows(taskset_id: str, version: int | None = None) -> Query:
    """Return the query for the newest row of each slug up to a version, in order, without those that were removed."""
    rows = tables.taskset_rows
    newest = sa.select(rows.c.slug, sa.func.max(rows.c.version).label("version")).where(
        rows.c.taskset_id == taskset_id
    )
    if version is not None:
        newest = newest.where(rows.c.version <= version)
    last = newest.group_by(rows.c.slug).subquery()
    return (
        sa.select(rows)
        .join(last, sa.and_(rows.c.slug == last.c.slug, rows.c.version == last.c.version))
        .where(rows.c.taskset_id == taskset_id, rows.c.row.is_not(None))
        .order_by(rows.c.position)
    )


def locked_version(connection: sa.Connection, taskset_id: str) -> int:
    """Return a taskset's version, locked until the end of the transaction to serialize changes."""
    sets = tables.tasksets
    query = sa.select(sets.c.version).where(sets.c.id == taskset_id).with_for_update()
    return int(connection.execute(query).scalar_one())


def write_version(
    connection: sa.Connection,
    taskset_id: str,
    version: int,
    changes: Sequence[tuple[str, int, _Row | None]],
) -> None:
    """Write a new version of a taskset: slug, position and row (None: removed) of each change."""
    sets, now = tables.tasksets, datetime.now(UTC)
    values = [
        {
            "taskset_id": taskset_id,
            "slug": slug,
            "version": version,
            "position": position,
            "row": None if row is None else _dumped(row).encode(),
            "created_at": now,
        }
        for slug, position, row in changes
    ]
    connection.execute(sa.insert(tables.taskset_rows), values)
    update = sa.update(sets).where(sets.c.id == taskset_id)
    connection.execute(update.values(version=version, updated_at=now))


def _differs(old: Row | None, row: _Row) -> bool:
    # Compared as text: 1, 1.0 and True are equal in Python, but differ as JSON.
    return old is None or _dumped(json.loads(old.row), sort=True) != _dumped(row, sort=True)


def _dumped(row: _Row, *, sort: bool = False) -> str:
    """Return a row as JSON. Raises `ValueError` for NaN, which `exact_json` writes as null."""
    return json.dumps(row, ensure_ascii=False, allow_nan=False, sort_keys=sort)


def _shown(row: Row) -> _Row:
    return {
        "id": dashed(row.id),
        "name": row.name,
        "project_id": None if row.project_id is None else dashed(row.project_id),
        "can_edit": True,
        "version": row.version,
        "created_at": row.created_at.isoformat(),
        "updated_at": row.updated_at.isoformat(),
    }
