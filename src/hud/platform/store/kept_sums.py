"""Sums over the runs of jobs, kept while the jobs do not change.

The runs of a job that is over hardly ever change, and there are a hundred thousand of them beside those that do. A small
question, answered from an index, tells which jobs went on since they were summed up, whoever wrote that; the runs of
those alone are read again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from hud.platform.store import Store, tables
from hud.platform.store.queries import in_parts

_SHORT = 2**31
Sums = TypeVar("Sums")
Revision = tuple[Any, ...]
Summed = Callable[[sa.Connection, Sequence[str]], Mapping[str, Sums]]


class KeptSums(Generic[Sums]):
    """Sums of one kind.

    `summed` computes them for up to `IDS_AT_ONCE` jobs; a job that it leaves out has `none`. Of each store at most `most` are kept,
    counted by `size`: those that were asked for last.
    """

    def __init__(
        self, summed: Summed[Sums], none: Sums, most: int, size: Callable[[Sums], int]
    ) -> None:
        self._summed, self._none, self._most, self._size = summed, none, most, size
        self._kept: WeakKeyDictionary[Store, OrderedDict[str, tuple[Revision, Sums]]] = (
            WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def of_jobs(
        self, store: Store, job_ids: sa.Select[Any]
    ) -> tuple[dict[str, Revision], dict[str, Sums]]:
        """Return the sums of the jobs that `job_ids` selects and that have runs, and the revisions they were made of."""
        with store.read() as connection:
            # First: what changes after it is found changed by the next question.
            revisions = _revisions(connection, job_ids)
            with self._lock:
                kept = self._kept.setdefault(store, OrderedDict())
                found = {job: kept[job] for job in revisions if job in kept}
            changed = [
                job
                for job, revision in revisions.items()
                if job not in found or found[job][0] != revision
            ]
            for some in in_parts(changed):
                fresh = self._summed(connection, some)
                found |= {job: (revisions[job], fresh.get(job, self._none)) for job in some}
        self._keep(kept, found, changed)
        return revisions, {job: sums for job, (_, sums) in found.items()}

    def _keep(
        self,
        kept: OrderedDict[str, tuple[Revision, Sums]],
        found: Mapping[str, tuple[Revision, Sums]],
        changed: Sequence[str],
    ) -> None:
        with self._lock:
            for job, sums in found.items():
                kept[job] = sums
                kept.move_to_end(job)
            if not changed:
                return
            size = sum(self._size(sums) for _, sums in kept.values())
            while size > self._most:
                _, (_, sums_of_oldest) = kept.popitem(last=False)
                size -= self._size(sums_of_oldest)


def _revisions(connection: sa.Connection, job_ids: sa.Select[Any]) -> dict[str, Revision]:
    """Return for each job that has runs what differs whenever one of them begins, ends, or is graded otherwise."""
    runs = tables.runs
    query = (
        sa.select(
            runs.c.job_id,
            sa.func.count(),
            sa.func.count(runs.c.reward),
            sa.func.sum(runs.c.reward),
            # When they ended, short enough for the sum to fit an integer.
            sa.func.sum(sa.type_coerce(runs.c.ended_at, sa.BigInteger) % _SHORT),
        )
        .where(runs.c.job_id.in_(job_ids))
        .group_by(runs.c.job_id)
    )
    return {row[0]: tuple(row[1:]) for row in connection.execute(query)}
