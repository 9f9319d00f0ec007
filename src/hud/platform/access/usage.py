"""Usage of a team's keys against their limits, counted from the gateway's ledger."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hud.platform.environments.runtime_sessions import MOST_SESSIONS
from hud.platform.rollouts.rollout_queue import Rollouts
from hud.platform.store import Store, tables

if TYPE_CHECKING:
    from hud.platform.access.keys import Keys
    from hud.platform.environments.runtime_sessions import RuntimeSessions

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


@dataclass(frozen=True)
class Use:
    """Requests and tokens: in the last minute, to which limits apply, and in the last 24 hours."""

    requests_minute: int = 0
    tokens_minute: int = 0
    requests_day: int = 0
    tokens_day: int = 0
    cost_day: float = 0.0
    """US dollars, as far as prices are known."""

    def shown(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def use_by_key(store: Store, team: str) -> dict[str | None, Use]:
    """Return what each key of a team used; None stands for what no key was needed for."""
    requests, now = tables.requests, datetime.now(UTC)
    tokens = requests.c.prompt_tokens + requests.c.completion_tokens
    in_minute = requests.c.created_at >= now - MINUTE
    query = (
        sa.select(
            requests.c.key_id,
            sa.func.count(sa.case((in_minute, 1))),
            sa.func.sum(sa.case((in_minute, tokens), else_=0)),
            sa.func.count(),
            sa.func.sum(tokens),
            sa.func.coalesce(sa.func.sum(requests.c.cost_usd), 0.0),
        )
        .where(requests.c.team_id == team, requests.c.created_at >= now - DAY)
        .group_by(requests.c.key_id)
    )
    return {row[0]: Use(*row[1:]) for row in store.rows(query)}


def team_use(store: Store, keys: Keys, sessions: RuntimeSessions, team: str) -> dict[str, Any]:
    """Return what a team uses: keys, environments and rollouts that run, and what it asked of models in 24 hours.

    `environments_most` is how many environments the team may have running here at a time.
    """
    rollouts = Rollouts(store)
    used = use_by_key(store, team).values()
    return {
        "keys": sum(key.valid for key in keys.list(team)),
        "environments": len(sessions.of_team(team)),
        "environments_most": MOST_SESSIONS,
        "rollouts": sum(rollouts.open_jobs(team).values()),
        "requests_day": sum(use.requests_day for use in used),
        "tokens_day": sum(use.tokens_day for use in used),
        "cost_day": sum(use.cost_day for use in used),
    }
