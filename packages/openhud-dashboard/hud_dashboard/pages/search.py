"""Full-text search over the prompts and answers of runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from hud.platform.dependencies import StorePart, Team
from hud.platform.store.task_labels import NO_TASK, task_labels
from hud_dashboard.page import Data, Offset, Pages, paged
from hud_dashboard.queries.run_search import MOST_HITS, search

router = Pages()
PER_PAGE = 25


@router.page("/search", "search.html")
def find(
    store: StorePart,
    team: Team,
    text: Annotated[str, Query(max_length=1_000)] = "",
    offset: Offset = 0,
) -> Data:
    """Runs whose prompts and answers contain the words of `text`, newest first."""
    hits = search(store, team, text, PER_PAGE, offset)
    labels = task_labels(
        store, team, {run["slug"]: run["trace_id"] for run in hits.items if run["slug"]}
    )
    for run in hits.items:
        run["label"] = labels.get(run["slug"], NO_TASK)
    return {
        "text": text,
        "items": hits.items,
        **paged(hits.total, PER_PAGE, offset),
        "more": hits.more,
        "most": MOST_HITS,
        "missing": hits.missing,
        "searched": hits.searched,
        "runs": hits.runs,
    }
