"""Lease of a training session: one training run has the session to itself, in the memory of the process that serves it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hud.errors import ConflictError
from hud.processes.presence import is_gone

if TYPE_CHECKING:
    from hud.client.contributor import Contributor

LEASE_SECONDS = 300.0
"""Seconds without a sign of life after which a training run on another machine has lost the session."""


class SessionLease:
    """The right of one client to accumulate and step; without a holder every client may."""

    def __init__(self, slug: str) -> None:
        self.holder: Contributor | None = None
        self._slug = slug
        self._renewed = 0.0

    def take(self, client: Contributor) -> None:
        """Give the session to a client alone, until `release`."""
        self.holder = client
        self.renew()

    def renew(self) -> None:
        """Count the time without a sign of life from now."""
        self._renewed = time.monotonic()

    def release(self) -> Contributor | None:
        """Let every client in again; returns the former holder."""
        former, self.holder = self.holder, None
        return former

    def is_held_by(self, client: Contributor) -> bool:
        """Renew the lease where it is this client's; returns whether it is."""
        is_holder = self.holder is not None and self.holder.id == client.id
        if is_holder:
            self.renew()
        return is_holder

    def is_lost_to(self, client: Contributor) -> bool:
        """Return whether another holder is dead or silent for too long, and lost the lease by that.

        Raises `ConflictError` while another holder is alive.
        """
        if self.holder is None or self.is_held_by(client):
            return False
        if is_gone(self.holder.id) or time.monotonic() - self._renewed > LEASE_SECONDS:
            self.holder = None
            return True
        raise ConflictError(
            f"Model {self._slug!r} is being trained by another run: {self.holder.process}. Wait for it to end, or train "
            f"a fork: hud models fork {self._slug} --name {self._slug}-2"
        )
