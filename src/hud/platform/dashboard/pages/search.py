"""Full-text search over what runs were told and answered."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from hud.platform.dashboard.page import Pages
from hud.platform.dashboard.rendering import page
from hud.platform.dependencies import StorePart, Team
from hud.platform.store.run_search import MOST_HITS, search

router = Pages()
PER_PAGE = 25


@router.page("/search")
def find(
    request: Request,
    store: StorePart,
    team: Team,
    text: Annotated[str, Query(max_length=1_000)] = "",
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> Response:
    """Runs whose prompts and answers hold the words of `text`, the newest first."""
    found = search(store, team, text, PER_PAGE, offset)
    data = {
        "text": text,
        "items": found.items,
        "total": found.total,
        "more": found.more,
        "most": MOST_HITS,
        "missing": found.missing,
        "limit": PER_PAGE,
        "offset": offset,
    }
    return page(request, "search.html", data)
