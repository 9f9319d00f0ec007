"""Leases: one process trains a model at a time, and whoever else tries is told who.

A lease is a row of the store. Its holder renews it while it works; a holder on this machine is also known to
be dead when its process is gone, and its lease is then taken over at once.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from hud.client.presence import process_lives, process_started
from hud.errors import ConflictError
from hud.platform.store import tables

if TYPE_CHECKING:
    from hud.platform.store import Store

LEASE_SECONDS = 900.0
"""How long a holder on another machine is believed to be alive after it last renewed. Longer than one pass."""
_ATTEMPTS = 5
_server: int | None = None
"""The server that this process works for, where it is its engine."""


def work_for(pid: int) -> None:
    """Say that this process is the engine of a server: what it holds, the server may act upon."""
    global _server
    _server = pid


@dataclass(frozen=True)
class Holder:
    """A process that holds a lease."""

    pid: int
    host: str
    command: str
    started: str
    """When the process started, as its machine counts; it tells a process from a later one of the same id."""
    acquired_at: datetime
    expires_at: datetime
    server: int | None = None
    """The process whose engine it is."""
    accumulated_on: str | None = None
    """The head that a gradient was accumulated for, `base` where there is none; None: nothing was."""

    @property
    def alive(self) -> bool:
        """False when it is certain, or was announced, that nobody is there any more."""
        if self.host == socket.gethostname():
            return process_lives(self.pid, self.started or None)
        return datetime.now(UTC) < self.expires_at

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
        """Return who holds a model now; a dead holder is nobody."""
        with self.store.read() as connection:
            row = connection.execute(
                sa.select(tables.leases).where(tables.leases.c.model_id == model_id)
            ).one_or_none()
        found = _holder(row) if row is not None else None
        return found if found is not None and found.alive else None

    def acquire(self, model_id: str, slug: str) -> Holder | None:
        """Take or renew the lease of a model; raises `ConflictError` while another process holds it.

        Returns whose it was, where a process died with it.
        """
        for _ in range(_ATTEMPTS):
            taken, before = self._try(model_id, slug)
            if taken:
                return before
        raise ConflictError(
            f"The lease of model {slug!r} changes hands too fast; try again in a moment."
        )

    def note_accumulated(self, model_id: str, head: str) -> None:
        """Write down that this process holds a gradient for a head, for whoever comes after it if it dies."""
        self._change(model_id, holder=_description(head))

    def expire(self, model_id: str) -> None:
        """Let anybody have the lease from now on, with what was noted in it."""
        self._change(model_id, expires_at=datetime.now(UTC))

    def _change(self, model_id: str, **values: object) -> None:
        leases = tables.leases
        pid, host, _ = _identity()
        ours = (leases.c.model_id == model_id, leases.c.pid == pid, leases.c.host == host)
        with self.store.begin() as connection:
            connection.execute(sa.update(leases).where(*ours).values(**values))

    def release(self, model_id: str) -> None:
        """Give the lease back, if this process holds it."""
        leases = tables.leases
        with self.store.begin() as connection:
            row = connection.execute(
                sa.select(leases).where(leases.c.model_id == model_id)
            ).one_or_none()
            if row is not None and _holder(row).is_this_process:
                connection.execute(sa.delete(leases).where(leases.c.model_id == model_id))

    def refuse_if_held(self, model_id: str, slug: str, act: str) -> None:
        """Raise `ConflictError` while another process trains the model."""
        holder = self.holder(model_id)
        if holder is not None and not holder.is_ours:
            raise ConflictError(_held(slug, holder, act))

    def _try(self, model_id: str, slug: str) -> tuple[bool, Holder | None]:
        """Take the lease once, from the dead holder that is returned too, if there was one.

        False where somebody else was faster and it is worth looking again.
        """
        leases = tables.leases
        now = datetime.now(UTC)
        pid, host, _ = _identity()
        ours = {
            "holder": _description(),
            "pid": pid,
            "host": host,
            "acquired_at": now,
            "expires_at": now + timedelta(seconds=LEASE_SECONDS),
        }
        try:
            with self.store.begin() as connection:
                row = connection.execute(
                    sa.select(leases).where(leases.c.model_id == model_id)
                ).one_or_none()
                if row is None:
                    connection.execute(sa.insert(leases).values(model_id=model_id, **ours))
                    return True, None
                holder = _holder(row)
                if holder.is_this_process:
                    ours["acquired_at"] = row.acquired_at
                    ours["holder"] = row.holder
                elif holder.alive:
                    raise ConflictError(_held(slug, holder, "trained"))
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
                return changed.rowcount == 1, None if holder.is_this_process else holder
        except IntegrityError:
            return False, None


def _held(slug: str, holder: Holder, act: str) -> str:
    return (
        f"Model {slug!r} cannot be {act} now: {holder} is training it. Wait for it to end or stop it, or train "
        f"a fork: hud models fork {slug} --name {slug}-2"
    )


def _holder(row: sa.Row[tuple[object, ...]]) -> Holder:
    described = json.loads(row.holder)
    return Holder(
        pid=row.pid,
        host=row.host,
        command=described["command"],
        started=described["started"],
        acquired_at=_aware(row.acquired_at),
        expires_at=_aware(row.expires_at),
        server=described["server"],
        accumulated_on=described["accumulated_on"],
    )


def _description(accumulated_on: str | None = None) -> str:
    described = {
        "command": _command(),
        "started": _identity()[2],
        "server": _server,
        "accumulated_on": accumulated_on,
    }
    return json.dumps(described)


def _command() -> str:
    """The command line of this process, short enough to read."""
    words = [Path(sys.argv[0]).name or "python", *sys.argv[1:]]
    text = " ".join(words)
    return text if len(text) <= 100 else text[:99] + "…"


def _identity() -> tuple[int, str, str]:
    return os.getpid(), socket.gethostname(), process_started(os.getpid()) or ""


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
