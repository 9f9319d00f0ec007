"""Labels of what a page shows."""

from __future__ import annotations

from typing import Any

from hud_platform.labels.labels import Kind, Labels
from hud_platform.store import Store

MOST_LABELS = 200


def labels_of(store: Store, team: str, kind: Kind, subject_id: str) -> list[dict[str, Any]]:
    """Return the labels of a subject, the newest first."""
    items, _ = Labels(store, team).page(kind, subject_id, limit=MOST_LABELS)
    return items
