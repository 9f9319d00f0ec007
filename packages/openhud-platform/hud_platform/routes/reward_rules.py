"""Routes of the rules that make rewards of outcomes.

GET /v2/reward-rules      POST /v2/reward-rules
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from hud_platform.dependencies import READ, TRAIN, StorePart, StrictBody, Team
from hud_platform.store import outcomes, records

router = APIRouter(prefix="/v2/reward-rules", tags=["traces"], dependencies=READ)


class RuleSet(StrictBody):
    """A new version of a rule."""

    rule: outcomes.Rule
    job: str | None = None
    """Job whose runs it holds for, by id or a unique start of it; None: all jobs without a rule of their own."""


@router.get("")
def list_rules(store: StorePart, team: Team) -> dict[str, Any]:
    """All versions of the team's rules, oldest first."""
    return {"items": outcomes.rules_of(store, team)}


@router.post("", dependencies=TRAIN)
def set_rule(store: StorePart, team: Team, body: RuleSet) -> dict[str, int]:
    """Set the rule of a job, or of all: rewards of runs with outcomes change. Returns the version."""
    job = None if body.job is None else records.find_job(store, team, body.job)["id"]
    return {"version": outcomes.set_rule(store, team, body.rule, job)}
