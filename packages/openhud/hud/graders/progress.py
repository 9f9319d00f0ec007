"""Training progress, for graders."""

from __future__ import annotations

from contextvars import ContextVar, Token

_progress: ContextVar[float] = ContextVar("hud_training_progress", default=1.0)


def training_progress() -> float:
    """Return the share of training that is done, 0 to 1. Outside training, held-out runs included, it is 1."""
    return _progress.get()


def set_progress(progress: float | None) -> Token[float]:
    """Set the progress that graders read in this context; None: outside training. `reset_progress` undoes it."""
    return _progress.set(1.0 if progress is None else min(max(progress, 0.0), 1.0))


def reset_progress(token: Token[float]) -> None:
    """Restore the progress before `set_progress`."""
    _progress.reset(token)
