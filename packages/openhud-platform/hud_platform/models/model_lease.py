"""Leases of models: one process trains a model at a time; others get an error that names the holder.

A lease is a row of the store. Its holder renews it while it works; a holder on this machine is also known to
be dead when its process is gone, and its lease is then taken over at once.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from hud.errors import ConflictError
from hud.processes.presence import command_line, process_lives, process_started
from hud_platform.models.records import BASE
from hud_platform.store import Store, tables
from hud_platform.store.queries import Query, Row

LEASE_SECONDS = 900.0
"""Seconds after its last renewal for which a holder on another machine counts as alive; longer than one pass."""
MOST_LOST = 16
"""Clients that are remembered until they are notified; the oldest makes room."""
_ATTEMPTS = 5
_server: int | None = None
"""The server that this process works for, where it is its engine."""


def work_for(pid: int) -> None:
    """Say that this process is the engine of a server: what it holds, the server may act upon."""
    global _server
    _server = pid


@dataclass(frozen=True)
class Pending:
    """A gradient that is not applied yet."""

    head: str
    """The checkpoint that it was accumulated for, or `base`."""
    client: str
    """Holder of the lease."""


@dataclass(frozen=True)
class Holder:
    """A process that holds a lease."""

    pid: int
    host: str
    command: str
    started: str
    """Start time of the process on its machine's clock; distinguishes it from a later process with the same id."""
    acquired_at: datetime
    expires_at: datetime
    server: int | None = None
    """The process whose engine it is."""
    pending: Pending | None = None
    """The gradient that it holds."""
    lost: tuple[str, ...] = ()
    """Clients that lost a gradient and have not been notified."""
    released: bool = False
    """Given back; the row stays for what `lost` says."""

    def alive(self, now: datetime) -> bool:
        """False when the holder's process is gone, or its end was announced."""
        if self.released:
            return False
        if self.host == socket.gethostname():
            return process_lives(self.pid, self.started or None)
        return now < self.expires_at

    @property
    def is_ours(self) -> bool:
        """True when it is we ourselves, or our engine."""
        here = self.host == socket.gethostname()
        return self.is_this_process or (here and self.server == os.getpid())

    @property
    def is_this_process(self) -> bool:
        """True when it is we ourselves."""
        return (self.pid, self.host, self.started) == _identity()

    def __str__(self) -> str:
        since = self.acquired_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        return f"process {self.pid} on {self.host} ({self.command}) since {since}"


class Leases:
    """The leases of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def holder(self, model_id: str) -> Holder | None:
        """Return the holder of a model; None for a holder whose process is gone."""
        row = self.store.row(_row_of(model_id))
        holder = _holder(row) if row is not None else None
        return holder if holder is not None and holder.alive(self.store.clock.now()) else None

    def acquire(self, model_id: str, slug: str) -> tuple[str, ...]:
        """Take or renew the lease of a model; raises `ConflictError` while another process holds it.

        Returns the clients that lost a gradient with the lease's former holder and have not been notified; none
        where this process holds the lease already.
        """
        for _ in range(_ATTEMPTS):
            lost = self._try(model_id, slug)
            if lost is not None:
                return lost
        raise ConflictError(
            f"The lease of model {slug!r} changes hands too fast; try again in a moment."
        )

    def note(self, model_id: str, pending: Pending | None, lost: Collection[str]) -> None:
        """Write down the gradient that this process holds and who lost one, for whichever process comes after it."""
        self._change(model_id, _description(pending, lost))

    def release(self, model_id: str, lost: Collection[str] = ()) -> None:
        """Give the lease back, if this process holds it; `lost` are clients that the next holder has to notify."""
        if lost:
            self._change(model_id, _description(None, lost, released=True))
            return
        leases = tables.leases
        with self.store.begin() as connection:
            row = connection.execute(_row_of(model_id)).one_or_none()
            if row is not None and _holder(row).is_this_process:
                connection.execute(sa.delete(leases).where(leases.c.model_id == model_id))

    def _change(self, model_id: str, description: str) -> None:
        leases = tables.leases
        pid, host, _ = _identity()
        ours = (leases.c.model_id == model_id, leases.c.pid == pid, leases.c.host == host)
        self.store.write(sa.update(leases).where(*ours).values(holder=description))

    def refuse_if_held(self, model_id: str, slug: str, act: str) -> None:
        """Raise `ConflictError` while another process trains the model."""
        holder = self.holder(model_id)
        if holder is not None and not holder.is_ours:
            raise ConflictError(_held(slug, holder, act))

    def _try(self, model_id: str, slug: str) -> tuple[str, ...] | None:
        """Take the lease once; returns who lost a gradient, None where another process was faster."""
        leases, models = tables.leases, tables.models
        now = self.store.clock.now()
        pid, host, _ = _identity()
        ours = {
            "holder": _description(),
            "pid": pid,
            "host": host,
            "acquired_at": now,
            "expires_at": now + timedelta(seconds=LEASE_SECONDS),
        }
        lost: tuple[str, ...] = ()
        try:
            with self.store.begin() as connection:
                row = connection.execute(_row_of(model_id)).one_or_none()
                if row is None:
                    connection.execute(sa.insert(leases).values(model_id=model_id, **ours))
                    return ()
                holder = _holder(row)
                if holder.is_this_process and not holder.released:
                    ours["acquired_at"] = row.acquired_at
                    ours["holder"] = row.holder
                elif holder.alive(now):
                    raise ConflictError(_held(slug, holder, "trained"))
                else:
                    query = sa.select(models.c.head_checkpoint_id).where(models.c.id == model_id)
                    head = connection.execute(query).scalar_one_or_none() or BASE
                    lost = holder.lost
                    # Where the head is another one, the gradient was applied before the process died.
                    if holder.pending is not None and holder.pending.head == head:
                        lost = (*lost, holder.pending.client)
                    ours["holder"] = _description(lost=lost)
                # Only if it is still the row that was judged: two may find a dead holder at once.
                changed = connection.execute(
                    sa.update(leases)
                    .where(
                        leases.c.model_id == model_id,
                        leases.c.holder == row.holder,
                        leases.c.pid == row.pid,
                    )
                    .values(**ours)
                )
                return lost if changed.rowcount == 1 else None
        except IntegrityError:
            return None


def _row_of(model_id: str) -> Query:
    return sa.select(tables.leases).where(tables.leases.c.model_id == model_id)


def _held(slug: str, holder: Holder, act: str) -> str:
    return (
        f"Model {slug!r} cannot be {act} now: {holder} is training it. Wait for it to end or stop it, or train "
        f"a fork: hud models fork {slug} --name {slug}-2"
    )


def _holder(row: Row) -> Holder:
    described = {"pending": None, "lost": (), "released": False, **json.loads(row.holder)}
    pending = described.pop("pending")
    return Holder(
        pid=row.pid,
        host=row.host,
        acquired_at=row.acquired_at,
        expires_at=row.expires_at,
        pending=Pending(**pending) if pending else None,
        lost=tuple(described.pop("lost")),
        **described,
    )


def _description(
    pending: Pending | None = None, lost: Collection[str] = (), *, released: bool = False
) -> str:
    described = {
        "command": command_line(),
        "started": _identity()[2],
        "server": _server,
        "pending": None if pending is None else asdict(pending),
        "lost": list(lost)[-MOST_LOST:],
        "released": released,
    }
    return json.dumps(described)


def _identity() -> tuple[int, str, str]:
    return os.getpid(), socket.gethostname(), process_started(os.getpid()) or ""
