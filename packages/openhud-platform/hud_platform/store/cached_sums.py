"""Cache of sums over the runs of jobs, invalidated when a job changes.
The runs of finished jobs rarely change, and outnumber those of running jobs by far. A small query, answered from an
index, returns the revision of every job, whichever process wrote it; only the runs of changed jobs are read again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from hud_platform.store import Store, tables
from hud_platform.store.queries import in_parts

_SHORT = 2**31
Sums = TypeVar("Sums")
Revision = tuple[Any, ...]
Summed = Callable[[sa.Connection, Sequence[str]], Mapping[str, Sums]]


class CachedSums(Generic[Sums]):
    """Cache of one kind of sums.
    `summed` computes them for up to `IDS_AT_ONCE` jobs; a job without a result has `none`. Each store has at most `most`
    entries, counted by `size`; the least recently used are evicted.
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
        """Return the sums of the jobs with runs that `job_ids` selects, and the revisions from which they were computed."""
        with store.read() as connection:
            # Before the sums: a later change then has a newer revision at the next call.
            revisions = _revisions(connection, job_ids)
            with self._lock:
                cached = self._kept.setdefault(store, OrderedDict())
                sums_by_job = {job: cached[job] for job in revisions if job in cached}
            changed = [
                job
                for job, revision in revisions.items()
                if job not in sums_by_job or sums_by_job[job][0] != revision
            ]
            for some in in_parts(changed):
                fresh = self._summed(connection, some)
                sums_by_job |= {job: (revisions[job], fresh.get(job, self._none)) for job in some}
        self._keep(cached, sums_by_job, changed)
        return revisions, {job: sums for job, (_, sums) in sums_by_job.items()}

    def _keep(
        self,
        cached: OrderedDict[str, tuple[Revision, Sums]],
        sums_by_job: Mapping[str, tuple[Revision, Sums]],
        changed: Sequence[str],
    ) -> None:
        with self._lock:
            for job, sums in sums_by_job.items():
                cached[job] = sums
                cached.move_to_end(job)
            if not changed:
                return
            size = sum(self._size(sums) for _, sums in cached.values())
            while size > self._most:
                _, (_, sums_of_oldest) = cached.popitem(last=False)
                size -= self._size(sums_of_oldest)


def _revisions(connection: sa.Connection, job_ids: sa.Select[Any]) -> dict[str, Revision]:
    """Return a revision for each job with runs; it changes when a run begins, ends, or gets another grade."""
    runs = tables.runs
    query = (
        sa.select(
            runs.c.job_id,
            sa.func.count(),
            sa.func.count(runs.c.reward),
            sa.func.sum(runs.c.reward),
            # End times, reduced so that their sum fits an integer.
            sa.func.sum(sa.type_coerce(runs.c.ended_at, sa.BigInteger) % _SHORT),
        )
        .where(runs.c.job_id.in_(job_ids))
        .group_by(runs.c.job_id)
    )
    return {row[0]: tuple(row[1:]) for row in connection.execute(query)}
