"""Usage of a team's keys against their limits, counted from the gateway's ledger."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hud_platform.access.keys import is_valid_key
from hud_platform.environments.runtime_sessions import MOST_SESSIONS
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.store import Store, tables

if TYPE_CHECKING:
    from hud_platform.access.keys import Keys
    from hud_platform.environments.runtime_sessions import RuntimeSessions

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


@dataclass(frozen=True)
class Use:
    """Requests and tokens of the last minute, the period of limits, and of the last 24 hours."""

    requests_minute: int = 0
    tokens_minute: int = 0
    requests_day: int = 0
    tokens_day: int = 0
    cost_day: float = 0.0
    """US dollars, for models with known prices."""

    def shown(self) -> dict[str, Any]:
        """Usage as plain data."""
        return asdict(self)


def use_by_key(store: Store, team: str) -> dict[str | None, Use]:
    """Return the usage of each key of a team, by key id; None: requests without a key."""
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
    """Return a team's usage: keys, running environments and rollouts, and requests to models in the last 24 hours.
    `environments_most` is the maximum number of concurrent environments of the team on this server.
    """
    rollouts = Rollouts(store)
    used = use_by_key(store, team).values()
    return {
        "keys": keys.count(team, is_valid_key()),
        "environments": len(sessions.of_team(team)),
        "environments_most": MOST_SESSIONS,
        "rollouts": sum(rollouts.open_jobs(team).values()),
        "requests_day": sum(use.requests_day for use in used),
        "tokens_day": sum(use.tokens_day for use in used),
        "cost_day": sum(use.cost_day for use in used),
    }
