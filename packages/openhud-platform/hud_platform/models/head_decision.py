"""The decision to move a model's head, with its record."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class HeadDecision(BaseModel):
    """Decision to promote a checkpoint."""

    compared_with: str | None
    """Head that the decision is about; None: the base weights."""
    metrics: dict[str, Any]
    """Record of the decision, for the checkpoint's metrics."""
