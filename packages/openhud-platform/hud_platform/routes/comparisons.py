"""Routes of comparisons of two runs by people.

GET /v2/comparisons   POST /v2/comparisons   GET /v2/comparisons/agreement   GET /v2/comparisons/preferred
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from hud_platform.dependencies import (
    READ,
    RUN,
    KeysPart,
    Limit,
    Offset,
    StrictBody,
    Who,
    of_team,
)
from hud_platform.labels.comparisons import (
    CRITERION,
    Choice,
    Comparisons,
    comparison_agreement,
    preferred,
)
from hud_platform.routes.labels import rater_of

router = APIRouter(prefix="/v2/comparisons", tags=["labels"], dependencies=READ)
ComparisonsPart = Annotated[Comparisons, of_team(Comparisons)]


class NewComparison(StrictBody):
    """A comparison by the caller."""

    left: str
    """Id of a run, or a unique start of it."""
    right: str
    choice: Choice
    name: str = CRITERION
    """Criterion."""
    shuffled: bool = False
    """The sides were in random order."""
    rater: str | None = Field(default=None, min_length=1, max_length=100)
    """Another rater, for whom the caller writes; default: the caller."""


@router.get("")
def list_comparisons(
    comparisons: ComparisonsPart,
    name: str | None = None,
    rater: str | None = None,
    limit: Limit = 100,
    offset: Offset = 0,
) -> dict[str, Any]:
    """Comparisons, newest first."""
    items, total = comparisons.page(name, rater, limit, offset)
    return {"items": items, "total": total, "limit": limit, "offset": offset}


@router.get("/agreement")
def get_comparison_agreement(comparisons: ComparisonsPart, name: str = CRITERION) -> dict[str, Any]:
    """Agreement of raters on the same two runs, and the share of choices of the left one."""
    return comparison_agreement(comparisons, name)


@router.get("/preferred")
def list_preferred(comparisons: ComparisonsPart, name: str = CRITERION) -> dict[str, Any]:
    """Each two runs of which most people prefer one: the better and the worse run, and the votes for and against."""
    items = preferred(comparisons, name)
    return {"items": items, "total": len(items)}


@router.post("", dependencies=RUN)
def add_comparison(
    comparisons: ComparisonsPart, keys: KeysPart, who: Who, body: NewComparison
) -> dict[str, Any]:
    """Compare two measured runs of one task. The newest comparison of a rater on two runs counts."""
    rater = rater_of(keys, who, body.rater)
    return comparisons.add(
        body.left, body.right, body.choice, body.name, rater, shuffled=body.shuffled
    )
