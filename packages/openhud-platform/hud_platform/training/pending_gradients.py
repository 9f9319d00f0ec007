"""`PendingGradient`: the accumulated gradient of a training session, its client, and clients that lost theirs.
A session holds the gradient of one client: a pass of another client discards it, and its client is notified by a
`ConflictError` at its next call. Clients to notify are stored in the lease, so that the next process notifies
them if this one crashes. Used on the session's thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hud.errors import ConflictError
from hud.learning.wire_types import DiscardedGradient
from hud_platform.models.model_lease import MOST_LOST, Pending
from hud_platform.models.records import BASE
from hud_platform.training.gradient_accumulation import Accumulated

if TYPE_CHECKING:
    from collections.abc import Collection

    from hud.client.contributor import Contributor
    from hud_platform.models.model_lease import Leases
    from hud_platform.training.trained_model import TrainedModel

_DIED = "the process that held it died"


class PendingGradient:
    """Gradient since the last step."""

    def __init__(
        self, trained: TrainedModel, leases: Leases, model_id: str, lost: Collection[str]
    ) -> None:
        """`lost`: clients whose gradient was lost with the lease's previous holder."""
        self.client: Contributor | None = None
        """Client of the gradient; None if nothing was accumulated since the last step."""
        self.drops = 0
        """Number of dropped gradients. A pass of a dropped gradient is computed again under its old idempotency key."""
        self._trained, self._leases, self._model_id = trained, leases, model_id
        self._gradient = Accumulated()
        self._unsaved = Accumulated()
        """Steps since the last checkpoint."""
        self._lost = dict.fromkeys(lost, _DIED)
        self._noted: Pending | None = None
        if self._lost:
            self._write()

    @property
    def total(self) -> Accumulated:
        """Counts of the inputs of the gradient and of steps without a checkpoint."""
        total = Accumulated()
        total.extend(self._unsaved)
        total.extend(self._gradient)
        return total

    @property
    def prompts(self) -> set[int]:
        """Digests of the texts in the gradient."""
        return self._gradient.prompts

    @property
    def unsaved(self) -> Accumulated:
        """Counts of the inputs of steps without a checkpoint."""
        return self._unsaved

    @property
    def lost(self) -> list[str]:
        """Processes of clients that have not been notified of a lost gradient."""
        return list(self._lost)

    def notify(self, client: Contributor) -> None:
        """Raise `ConflictError`, once, if this client's gradient was lost: a partial batch must not be applied as a whole."""
        reason = self._lost.pop(client.id, None)
        if reason is None:
            return
        self._write()
        raise ConflictError(
            f"The gradient that this client accumulated for {self._trained.model.slug!r} was lost: {reason}. The model "
            f"is at step {self._trained.step}: send the whole batch again, then optim_step."
        )

    def claim(self, client: Contributor) -> None:
        """Begin a pass of a client; a gradient of another client is discarded."""
        if self.client not in (None, client):
            self.discard(client, f"{client.process} began to accumulate another")
        self.client = client

    def note(self) -> None:
        """Store in the lease that there is a gradient, so that its client is notified if this process crashes."""
        if self.client is None or not self._trained.trainer.pending:
            return
        pending = Pending(self._trained.head or BASE, self.client.id)
        if pending != self._noted:
            self._noted = pending
            self._write()

    def add(self, accumulated: Accumulated) -> None:
        """Count one pass."""
        self._gradient.extend(accumulated)

    def discard(self, by: Contributor | None, reason: str) -> DiscardedGradient | None:
        """Discard the gradient and return its description. Its client is notified later, unless it is `by`."""
        client, dropped = self.client, self._gradient
        if client is None:
            return None
        if by is None or client.id != by.id:
            self._lost[client.id] = reason
            while len(self._lost) > MOST_LOST:
                del self._lost[next(iter(self._lost))]
        self.forget()
        return DiscardedGradient(
            client=client.process, passes=len(dropped.metrics), runs=dropped.traces
        )

    def forget(self) -> None:
        """Drop the gradient without a later notification: its client has received an error already."""
        self._drop()
        if self._noted is not None:
            self._noted = None
            self._write()

    def stepped(self, *, saved: bool) -> None:
        """Begin the next gradient after a step; with `saved` it has a checkpoint."""
        if saved:
            # The note in the lease refers to the previous head and has no effect from now on.
            self._unsaved, self._noted = Accumulated(), None
        else:
            self._unsaved.extend(replace(self._gradient, prompts=set()))
        self.client, self._gradient = None, Accumulated()

    def saved(self) -> None:
        """Begin the next checkpoint; the gradient stays, and its client is notified if this process crashes."""
        self._unsaved = Accumulated()
        self.note()

    def moved(self) -> None:
        """Start from another checkpoint; unsaved steps are dropped."""
        self._unsaved, self._noted = Accumulated(), None
        self._drop()
        self._write()

    def _drop(self) -> None:
        self._trained.trainer.zero_grad()
        self.client, self._gradient = None, Accumulated()
        self.drops += 1

    def _write(self) -> None:
        self._leases.note(self._model_id, self._noted, self.lost)
