"""Search over runs: GET /v2/search?text=QUERY"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from hud_platform.dependencies import READ, Limit, Offset, StorePart, Team
from hud_platform.search.run_search import search

router = APIRouter(prefix="/v2/search", tags=["search"], dependencies=READ)
LONGEST_QUERY = 1_000
SearchText = Annotated[str, Query(max_length=LONGEST_QUERY)]


@router.get("")
def find_runs(
    store: StorePart, team: Team, text: SearchText, limit: Limit = 20, offset: Offset = 0
) -> dict[str, Any]:
    """Runs that meet every condition of `text`, newest first: words, "phrases", -excluded, `tool:sql`, `reward:<0.5`.
    `more`: there are more than `total`. `missing`: runs that are not indexed yet.
    """
    return {**asdict(search(store, team, text, limit, offset)), "limit": limit, "offset": offset}
