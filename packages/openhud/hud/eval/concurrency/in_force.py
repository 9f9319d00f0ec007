"""Concurrency in force: the limits of rollouts and of requests, as a job shows and records them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from hud.eval.concurrency.admission import Admission
from hud.inference.request_window import limited_windows

if TYPE_CHECKING:
    from hud.eval.job import Job

LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class ConcurrencyInForce:
    """Concurrency of a job that something holds below the user's limit."""

    rollouts: int
    """Number of rollouts that run."""
    max_concurrent: int
    """The user's limit."""
    held_by: str | None = None
    """Reason why no further rollout begins: `memory`, or `requests` that wait for their model; None: none is held back."""
    requests: Mapping[str, int] = field(default_factory=dict)
    """By model whose server has refused requests: most requests in flight."""

    @classmethod
    def of(cls, running: int, width: int, admission: Admission) -> ConcurrencyInForce | None:
        """Return the concurrency in force; None where only the user's limit is."""
        windows = limited_windows()
        if not windows and admission.held_by is None:
            return None
        requests = {model: min(width, int(window.limit)) for model, window in windows.items()}
        return cls(running, width, admission.held_by, requests)

    def __str__(self) -> str:
        parts = [f"{count} requests at once to {model}" for model, count in self.requests.items()]
        if self.held_by == "memory":
            parts.append(f"{self.rollouts} rollouts at once, for lack of memory")
        return ", ".join(parts)

    def is_news(self, before: ConcurrencyInForce | None) -> bool:
        """Return True where it is worth a line after `before`: a new limit, or one that halved or doubled."""
        if before is None or (self.held_by == "memory") != (before.held_by == "memory"):
            return True
        return any(
            not before.requests.get(model, 0) / 2 < count < before.requests[model] * 2
            for model, count in self.requests.items()
        )


class ConcurrencyWatch:
    """The concurrency of a job's batch, looked at while it is played: recorded with the job, and shown."""

    def __init__(
        self, job: Job, width: int, admission: Admission, say: Callable[[str], None] | None
    ) -> None:
        self._job, self._width, self._admission, self._say = job, width, admission, say
        self._said: ConcurrencyInForce | None = None

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Record the concurrency in force where it has changed, and report it where that is news."""
        now = ConcurrencyInForce.of(len(self._job.active), self._width, self._admission)
        if now is None or (record := asdict(now)) == self._job.concurrency:
            return
        self._job.concurrency = record
        self._job.recorder.job_started(self._job)
        text = str(now)
        if self._say is not None and text and now.is_news(self._said):
            self._said = now
            self._say(f"In force: {text}.")
