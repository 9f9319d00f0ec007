"""`AttemptRecorder`: the journal lines of one attempt at a rollout, in memory until the platform has them."""

from __future__ import annotations

import math
import time

from hud.client.recording import MemoryRecorder


class AttemptRecorder(MemoryRecorder):
    """Recorder that separates the steps of the rollout's own run, which may be sent before its end, from all other lines."""

    def __init__(self, trace_id: str) -> None:
        super().__init__()
        self._mark = b"\t" + trace_id.encode() + b"\t"
        self._steps: list[bytes] = []
        self.waiting_since = math.inf

    def take_steps(self) -> bytes:
        """Return the steps that were recorded since the last call."""
        steps, self._steps, self.waiting_since = self._steps, [], math.inf
        return b"".join(steps)

    def put_back(self, steps: bytes) -> None:
        """Return again, at the next `take_steps`, what could not be sent."""
        self._steps.insert(0, steps)
        self.waiting_since = min(self.waiting_since, time.monotonic())

    def _add(self, line: bytes) -> None:
        # CHECKSUM, KIND, ID, ...: see `hud.trace.recording.journal`.
        checksum, kind, _ = line[:64].split(b"\t", 2)
        own = line.startswith(self._mark, len(checksum) + 1 + len(kind))
        if own and kind in (b"S", b"T"):
            self._steps.append(line)
            self.waiting_since = min(self.waiting_since, time.monotonic())
        else:
            super()._add(line)
