"""Continuation of training runs by `hud train`: its options, and the exit code of a paused run."""

from __future__ import annotations

from typing import TypedDict

PAUSED = 1
"""Exit code of a run that the guard paused."""


class Continuation(TypedDict):
    """Options of resuming an unfinished run."""

    fresh: bool
    override_guard: bool
