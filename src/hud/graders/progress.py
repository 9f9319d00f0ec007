"""How far the training is that a run is played for, as graders read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_progress: ContextVar[float] = ContextVar("hud_training_progress", default=1.0)


def training_progress() -> float:
    """Return the share of training that is done, 0 to 1. Outside training, held-out runs included, it is 1."""
    return _progress.get()


@contextmanager
def at_progress(progress: float | None) -> Iterator[None]:
    """Grade as at this point of training; None: outside training."""
    token = _progress.set(1.0 if progress is None else min(max(progress, 0.0), 1.0))
    try:
        yield
    finally:
        _progress.reset(token)
