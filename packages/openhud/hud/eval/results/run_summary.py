"""`RunSummary`: a run in one row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from hud.errors import FailureKind
from hud.trace.recorded_time import seconds_between


@dataclass(frozen=True)
class RunSummary:
    """Summary of a run for statistics and resuming, independent of its storage."""

    slug: str
    reward: float | None
    group_id: str | None = None
    attempt: int = 0
    failure_kind: FailureKind | None = None
    stop_reason: str | None = None
    model: str | None = None
    seconds: float | None = None
    turns: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    turn_rewards: tuple[float, ...] | None = None
    """Reward of each turn, of a grade that has them."""
    tool_calls: Mapping[str, int] | None = None
    """Number of `calls`, and of failed ones by kind; None without a call."""


def elapsed(started: str | None, ended: str | None) -> float | None:
    """Return the seconds between two ISO timestamps; None if one is missing."""
    if started is None or ended is None:
        return None
    return seconds_between(datetime.fromisoformat(started), datetime.fromisoformat(ended))
