"""Full-text search over the prompts and answers of runs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from hud.platform.dashboard.page import Data, Offset, Pages, paged
from hud.platform.dependencies import StorePart, Team
from hud.platform.store.run_search import MOST_HITS, search

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
    found = search(store, team, text, PER_PAGE, offset)
    return {
        "text": text,
        "items": found.items,
        **paged(found.total, PER_PAGE, offset),
        "more": found.more,
        "most": MOST_HITS,
        "missing": found.missing,
        "searched": found.searched,
        "runs": found.runs,
    }
