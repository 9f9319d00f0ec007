"""Search over everything that runs do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import Query

from hud.errors import UsageError
from hud_dashboard.page import Data, Offset, Pages, paged
from hud_dashboard.queries.saved_views import saved_views
from hud_platform.dependencies import StorePart, Team
from hud_platform.search.run_search import MOST_HITS, RunHits, search

router = Pages()
PER_PAGE = 25


@router.page("/search", "search.html", csv=True)
def find(
    store: StorePart,
    team: Team,
    text: Annotated[str, Query(max_length=1_000)] = "",
    offset: Offset = 0,
) -> Data:
    """Runs that meet every condition of `text`, newest first. `problem`: the fault of a malformed query."""
    problem = None
    try:
        hits = search(store, team, text, PER_PAGE, offset)
    except UsageError as error:
        hits, problem = RunHits([], 0, False, 0, 0), str(error)
    return {
        "text": text,
        **asdict(hits),
        **paged(hits.total, PER_PAGE, offset),
        "most": MOST_HITS,
        "searched": hits.searched,
        "problem": problem,
        "views": saved_views(store, team, "/search"),
    }
