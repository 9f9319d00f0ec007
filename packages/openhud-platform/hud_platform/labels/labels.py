"""Labels, notes and tags: one for each subject, name and rater. A later one replaces the earlier."""

from __future__ import annotations

import math
import re
from typing import Any, Literal, get_args

import sqlalchemy as sa

from hud.errors import NotFoundError, UsageError
from hud.trace import new_id, plain
from hud.trace.recorded_time import now_microseconds
from hud_platform.store import Store, records, tables
from hud_platform.store.ingest import upsert
from hud_platform.store.queries import as_dict

Kind = Literal["run", "job", "checkpoint"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
LONGEST_NOTE = 4_000
LONGEST_RATER = 200


class Labels:
    """The labels of one team."""

    def __init__(self, store: Store, team: str) -> None:
        self.store, self.team = store, team

    def put(
        self, kind: Kind, subject: str, name: str, rater: str, value: float | None, note: str | None
    ) -> dict[str, Any]:
        """Label a subject, by its id or a unique start of it; return the label. `value` None: a tag.

        Raises `UsageError` for a name, a value or a note that is not allowed.
        """
        if not NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} is no name of a label: use up to 64 lower-case letters, digits, hyphens and underscores."
            )
        if value is not None and not (math.isfinite(value) and abs(value) <= tables.LARGEST_REWARD):
            raise UsageError(f"The value of a label is a finite number, not {value}.")
        if note is not None and len(note) > LONGEST_NOTE:
            raise UsageError(
                f"A note has at most {LONGEST_NOTE:,} characters; this one has {len(note):,}."
            )
        row: dict[str, Any] = {
            "id": new_id(),
            "team_id": self.team,
            "kind": kind,
            "subject_id": self.subject_id(kind, subject),
            "name": name,
            "value": value,
            "note": note or None,
            "rater": rater[:LONGEST_RATER],
            "created_at": now_microseconds(),
        }
        key = ("subject_id", "name", "rater")
        with self.store.begin() as connection:
            changed = ("id", "value", "note", "created_at")
            upsert(connection, tables.labels, [row], update=changed, conflict=key)
        (label,) = self.page(kind, row["subject_id"], name, row["rater"], limit=1)[0]
        return label

    def page(
        self,
        kind: str | None = None,
        subject_id: str | None = None,
        name: str | None = None,
        rater: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> tuple[list[dict[str, Any]], int]:
        """Return a page of labels, newest first, and their number. None: any."""
        labels = tables.labels
        wanted = {"kind": kind, "subject_id": subject_id, "name": name, "rater": rater}
        query = sa.select(labels).where(
            labels.c.team_id == self.team,
            *(labels.c[column] == value for column, value in wanted.items() if value is not None),
        )
        order = query.order_by(labels.c.created_at.desc(), labels.c.id)
        rows, total = self.store.page(order, limit, offset)
        return [_shown(row) for row in rows], total

    def values(self, name: str, limit: int) -> list[tuple[str, float]]:
        """Return the runs of a label that has values, each with the value of each rater, newest first; at most `limit`."""
        labels = tables.labels
        query = sa.select(labels.c.subject_id, labels.c.value).where(
            labels.c.team_id == self.team,
            labels.c.kind == "run",
            labels.c.name == name,
            labels.c.value.is_not(None),
        )
        rows = self.store.rows(query.order_by(labels.c.created_at.desc(), labels.c.id).limit(limit))
        return [(row.subject_id, row.value) for row in rows]

    def names(self) -> list[str]:
        """Return the names of the team's labels, in order."""
        labels = tables.labels
        query = sa.select(labels.c.name).where(labels.c.team_id == self.team).distinct()
        return self.store.values(query.order_by(labels.c.name))

    def remove(self, label_id: str) -> None:
        """Remove a label. Raises `NotFoundError` where there is none."""
        labels = tables.labels
        theirs = (labels.c.id == plain(label_id), labels.c.team_id == self.team)
        if not self.store.write(sa.delete(labels).where(*theirs)):
            raise NotFoundError(f"There is no label {label_id!r}.")

    def subject_id(self, kind: Kind, reference: str) -> str:
        """Return the id of a subject. Raises `NotFoundError` where there is none, or several begin so."""
        if kind == "run":
            return str(records.find_run(self.store, self.team, reference)["trace_id"])
        if kind == "job":
            return str(records.find_job(self.store, self.team, reference)["id"])
        nodes, models = tables.checkpoints, tables.models
        query = (
            sa.select(nodes.c.id)
            .join(models, models.c.id == nodes.c.model_id)
            .where(models.c.team_id == self.team)
            .where(nodes.c.id.startswith(plain(reference), autoescape=True))
        )
        ids = self.store.values(query.limit(2))
        if len(ids) != 1:
            problem = "Several checkpoints begin with" if ids else "There is no checkpoint"
            raise NotFoundError(f"{problem} {reference!r}; `hud models tree MODEL` lists them.")
        return str(ids[0])


def _shown(row: Any) -> dict[str, Any]:
    values = as_dict(row)
    return {**values, "created_at": row.created_at.isoformat()}
