"""Identity of a request: team, key and permissions. Routes use `caller`; code below the routes does not read requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from starlette.requests import HTTPConnection

from hud.errors import PlatformError
from hud_platform.access.run_grant import RunGrant
from hud_platform.store.tables import LOCAL_TEAM

Scope = Literal["read", "run", "train", "admin"]
"""`read`: all data of the team. `run`: inference, rollouts, telemetry, tasksets. `train`: training, forks,
heads, deploys. `admin`: keys. Each scope includes the earlier ones."""

SCOPES: tuple[Scope, ...] = get_args(Scope)
RUN_PASS_BOUND: Final = "A run pass opens model calls of its run alone."
FLEET: Final = "fleet"
"""The one scope of a pass, with which a worker joins the fleet; it holds no other, and no other holds it."""


class KeyLimits(NamedTuple):
    """Limits of one key."""

    key_id: str
    requests_per_minute: int | None
    tokens_per_minute: int | None


@dataclass(frozen=True)
class Identity:
    """Identity of a request: team, key and permissions."""

    team_id: str
    scopes: frozenset[Scope]
    key_id: str | None = None
    user_id: str | None = None
    worker: bool = False
    """True for workers of the fleet, which take rollouts and have no other permission: with a key (a pass) those of its team,
    without one, as the server's own workers, those of every team."""
    inference_only: bool = False
    """True for the pass of one rollout, which permits inference and the passes of programs that play runs."""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    shared_limits: tuple[KeyLimits, ...] = ()
    """Limits of the keys that its key was made with, against which its requests count, too."""
    run: RunGrant | None = None
    """Grant of a run pass: a program's model calls for one run."""

    @property
    def is_limited(self) -> bool:
        """True if requests of this identity count against a limit."""
        limits = (self.requests_per_minute, self.tokens_per_minute)
        return self.key_id is not None and any(limit is not None for limit in limits)

    @property
    def limits(self) -> tuple[KeyLimits, ...]:
        """Limits that its requests count against, without those that are equal to the next key's: its are as tight."""
        if not self.is_limited:
            return ()
        assert self.key_id is not None
        own = KeyLimits(self.key_id, self.requests_per_minute, self.tokens_per_minute)
        pairs = zip((own, *self.shared_limits), (*self.shared_limits, None), strict=True)
        return tuple(limits for limits, above in pairs if above is None or limits[1:] != above[1:])

    @property
    def holder(self) -> str:
        """Holder of the key: a login counts as the key that confirmed it. Answers to a request that is repeated are its own."""
        return f"{self.team_id}:{self.user_id or self.key_id or ''}"

    def may(self, scope: Scope) -> bool:
        """Return True if one of the identity's scopes includes `scope`."""
        return any(SCOPES.index(held) >= SCOPES.index(scope) for held in self.scopes)

    def require(self, scope: Scope) -> None:
        """Raise `PlatformError` 403 if the key lacks the scope."""
        if not self.may(scope):
            raise PlatformError(
                f"This key lacks the scope {scope!r}. Ask an admin of your team for one: hud keys create NAME --scope {scope}",
                403,
            )


LOCAL = Identity(team_id=LOCAL_TEAM, scopes=frozenset({"admin"}), user_id=LOCAL_TEAM)
"""Identity of the user of an embedded platform, which has no keys."""


def caller(request: HTTPConnection) -> Identity:
    """Return the identity of a request. On a server with keys, the middleware has refused requests without one."""
    identity: Identity = getattr(request.state, "identity", LOCAL)
    return identity


def needs(scope: Scope) -> Callable[[HTTPConnection], Awaitable[None]]:
    """Return a dependency that refuses callers without `scope` with status 403."""

    # Asynchronous: FastAPI would send a plain function to another thread.
    async def check(request: HTTPConnection) -> None:
        who = caller(request)
        if who.run is not None:  # Routes of model calls have none of these dependencies.
            raise PlatformError(RUN_PASS_BOUND, 403)
        who.require(scope)

    return check
