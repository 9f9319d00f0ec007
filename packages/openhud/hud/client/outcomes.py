"""Outcomes of runs, reported when they become known."""

from __future__ import annotations

from typing import Any


async def record_outcome(
    trace_id: str, name: str, value: float, *, source: str | None = None
) -> float | None:
    """Add an outcome to a recorded run, such as `resolved`; returns the run's reward after it.

    `trace_id`: the run's id, a unique start of it, or its client's name for it. `source`: reporter of the value. The reward follows the
    rule of its job (`hud reward-rule`). Raises `NotFoundError` for an unknown run.
    """
    from hud.client import connect

    body: dict[str, Any] = {"name": name, "value": value, "source": source}
    outcome = await connect().post(f"/v2/trace/{trace_id}/outcome", body)
    reward: float | None = outcome["reward"]
    return reward
