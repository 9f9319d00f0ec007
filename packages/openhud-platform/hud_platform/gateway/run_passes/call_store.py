"""Tables of run passes and their model calls. Every server of a store reads and writes them; no process has state of its own.

A call gets its number in one transaction when it arrives, and its outcome in another one before its answer ends. A call that
keeps the status `open` was lost with its server.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa

from hud import exact_json
from hud.errors import ConflictError, HudError, NotFoundError, PlatformError
from hud.trace import STEP_SCHEMA
from hud.trace.recorded_time import microseconds
from hud.trace.recording.journal import encode_json
from hud_platform.access.keys import is_valid_key
from hud_platform.access.run_grant import RunGrant
from hud_platform.gateway.turn_index import Key
from hud_platform.store import Store, tables
from hud_platform.store.ingest import upsert
from hud_platform.store.ownership import refuse_foreign
from hud_platform.store.records import steps_in_order
from hud_platform.store.run_calls import calls_of_pass, unrecorded_steps
from hud_platform.store.telemetry import ingest_spans

CallStatus = Literal["open", "answered", "refused", "gone", "cancelled"]
Limit = Literal["calls", "tokens", "cost"]

CLEAN_SECONDS = 60.0
"""Least interval of two cleanings by one process."""
UNRECORDED_SECONDS = 3600.0
"""Time after the expiry of a pass after which its run's process counts as dead."""
MOST_CLEANED = 500
RESERVED_SECONDS = 30.0
"""Time after which what a call has reserved is free again, if its server is gone."""
_OF_PASS = (
    (tables.run_calls, tables.run_calls.c.pass_id),
    (tables.run_reservations, tables.run_reservations.c.pass_id),
    (tables.responses, tables.responses.c.team_id),
    (tables.run_passes, tables.run_passes.c.id),
)
_log = logging.getLogger("hud.platform")


class RunEndedError(ConflictError):
    """The run of a pass has ended: its calls are refused with status 409."""


class RunLimitError(HudError):
    """A limit of a pass is used up."""

    status = 403

    def __init__(self, message: str, limit: Limit) -> None:
        super().__init__(message)
        self.limit = limit

    @property
    def noted(self) -> dict[str, Any]:
        """The refusal, as a call records it."""
        return {
            "kind": "limit",
            "limit": self.limit,
            "status": self.status,
            "message": str(self),
        }


@dataclass(frozen=True)
class CallOutcome:
    """Outcome of a model call."""

    status: CallStatus
    steps: Sequence[dict[str, Any]] = ()
    """Agent steps, one for each choice."""
    results: Sequence[dict[str, Any]] = ()
    """Tool steps, of results that the request carried first."""
    continues: Sequence[Key] = ()
    """Earlier answers that stand in the request."""
    refusal: dict[str, Any] | None = None
    tokens: int = 0
    cost_usd: float = 0.0


@dataclass(frozen=True)
class Need:
    """Share of a run's limits that a call may take."""

    tokens_limit: int | None
    cost_limit: float | None
    wanted: int | None
    """Most tokens of each answer; None: as many as are left."""
    choices: int
    price: float
    """Dollars of a sampled token."""
    cost: Callable[[int], float]
    """Dollars of the prompt and of a number of sampled tokens."""

    def share(
        self, tokens: int, cost_usd: float, held_tokens: int, held_usd: float
    ) -> tuple[int, int, float] | None:
        """Return the most tokens of each answer, those of all together, and dollars; None: other calls hold what is left.

        `tokens`, `cost_usd`: spent by calls that ended; `held_tokens`, `held_usd`: reserved by others. Raises `RunLimitError`.
        """
        left = _left(self.tokens_limit, tokens + held_tokens)
        left_usd = _left(self.cost_limit, cost_usd + held_usd)
        wanted = math.inf if self.wanted is None else self.wanted
        most = int(min(wanted, max(1, left / self.choices)))
        expected = self.cost(most * self.choices)
        # A call alone may begin with less than it is expected to cost: it is bounded to what is left.
        if left > 0 and (expected <= left_usd or (not held_usd and left_usd > 0)):
            if self.price and expected > left_usd:
                most = min(most, max(1, int(left_usd / self.price / self.choices)))
            answers = 0 if self.tokens_limit is None else most * self.choices
            return most, answers, 0.0 if self.cost_limit is None else min(left_usd, expected)
        if held_tokens if left <= 0 else held_usd:
            return None
        if self.tokens_limit is not None and left <= 0:
            raise over_tokens(self.tokens_limit)
        raise over_cost(self.cost_limit or 0.0)


class CallStore:
    """Passes and calls in a store. Methods block."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cleaned = -math.inf

    def open(self, grant: RunGrant, team: str, key_id: str | None, seconds: float) -> datetime:
        """Record a pass; return its expiry. Raises `NotFoundError` for another team's run."""
        if time.monotonic() - self._cleaned > CLEAN_SECONDS:
            self._cleaned = time.monotonic()
            self.clean()
        opened = self._store.clock.now()
        expires = opened + timedelta(seconds=seconds)
        with self._store.begin() as connection:
            refuse_foreign(connection, team, [], [grant.trace_id])
            connection.execute(
                sa.insert(tables.run_passes).values(
                    id=grant.pass_id,
                    trace_id=grant.trace_id,
                    team_id=team,
                    key_id=key_id,
                    opened_at=opened,
                    expires_at=expires,
                )
            )
        return expires

    def begin(self, grant: RunGrant, digest: str) -> int:
        """Record the arrival of a call; return its number.

        Raises `RunEndedError`, `RunLimitError`, and `PlatformError` 401 for a revoked key of the opener.
        """
        passes, calls = tables.run_passes, tables.run_calls
        refused: HudError | None = None
        with self._store.begin() as connection:
            query = sa.select(passes).where(passes.c.id == grant.pass_id).with_for_update()
            row = connection.execute(query).one_or_none()
            if row is None or row.ended_at is not None:
                raise ended()
            _refuse_revoked(connection, row.key_id)
            now = datetime.now(UTC)
            number = int(row.calls) + 1
            refused = _over_limit(connection, grant, row)
            connection.execute(
                sa.update(passes).where(passes.c.id == grant.pass_id).values(calls=number)
            )
            values: dict[str, Any] = {"status": "open"}
            if refused is not None:
                values = {
                    "status": "refused",
                    "ended_at": now,
                    "refusal": encode_json(refused.noted),
                }
            connection.execute(
                sa.insert(calls).values(
                    pass_id=grant.pass_id, number=number, digest=digest, started_at=now, **values
                )
            )
        if refused is not None:
            raise refused
        return number

    def reserve(self, pass_id: str, number: int, need: Need) -> int | None:
        """Reserve what a call needs, and return the most tokens of each of its answers; None: other calls hold what is left.

        Raises `RunLimitError` if nothing is left, and no other call can give anything back.
        """
        passes, reserved = tables.run_passes, tables.run_reservations
        now = self._store.clock.now()
        with self._store.begin() as connection:
            query = sa.select(passes.c.tokens, passes.c.cost_usd).where(passes.c.id == pass_id)
            spent = connection.execute(query.with_for_update()).one_or_none()
            if spent is None:
                raise ended()
            held = sa.select(
                sa.func.sum(reserved.c.tokens), sa.func.sum(reserved.c.cost_usd)
            ).where(
                reserved.c.pass_id == pass_id,
                reserved.c.number != number,
                reserved.c.expires_at > now,
            )
            tokens, cost = connection.execute(held).one()
            share = need.share(spent.tokens, spent.cost_usd, int(tokens or 0), cost or 0.0)
            if share is None:
                return None
            most, answers, dollars = share
            row = {"pass_id": pass_id, "number": number, "tokens": answers, "cost_usd": dollars}
            until = microseconds(now + timedelta(seconds=RESERVED_SECONDS))
            columns = ("tokens", "cost_usd", "expires_at")
            upsert(connection, reserved, [{**row, "expires_at": until}], update=columns)
        return most

    def renew(self, calls: Sequence[tuple[str, int]]) -> None:
        """Keep what calls have reserved: they are in progress."""
        reserved, now = tables.run_reservations, self._store.clock.now()
        due = now + timedelta(seconds=RESERVED_SECONDS / 2)
        if not calls:
            return
        own = sa.tuple_(reserved.c.pass_id, reserved.c.number).in_(calls)
        if self._store.row(sa.select(reserved.c.number).where(own, reserved.c.expires_at < due)):
            until = now + timedelta(seconds=RESERVED_SECONDS)
            self._store.write(sa.update(reserved).where(own).values(expires_at=until))

    def settle(self, grant: RunGrant, number: int, outcome: CallOutcome) -> None:
        """Record the outcome of a call. Raises `RunEndedError` if the run has ended: an answer is then not recorded."""
        passes, calls = tables.run_passes, tables.run_calls
        with self._store.begin() as connection:
            query = sa.select(passes.c.ended_at).where(passes.c.id == grant.pass_id)
            over = connection.execute(query.with_for_update()).scalar_one() is not None
            recorded = CallOutcome("cancelled") if over else outcome
            connection.execute(
                sa.update(calls)
                .where(calls.c.pass_id == grant.pass_id, calls.c.number == number)
                .values(
                    status=recorded.status,
                    ended_at=datetime.now(UTC),
                    steps=_packed(recorded.steps),
                    results=_packed(recorded.results),
                    continues=_packed(recorded.continues),
                    refusal=None if recorded.refusal is None else encode_json(recorded.refusal),
                )
            )
            reserved = tables.run_reservations
            connection.execute(
                sa.delete(reserved).where(
                    reserved.c.pass_id == grant.pass_id, reserved.c.number == number
                )
            )
            if recorded.tokens or recorded.cost_usd:
                connection.execute(
                    sa.update(passes)
                    .where(passes.c.id == grant.pass_id)
                    .values(
                        tokens=passes.c.tokens + recorded.tokens,
                        cost_usd=passes.c.cost_usd + recorded.cost_usd,
                    )
                )
        if over and outcome.status == "answered":
            raise ended()

    def end(self, team: str, pass_id: str) -> None:
        """End a run's pass. Idempotent. Raises `NotFoundError` for another team's."""
        passes = tables.run_passes
        with self._store.begin() as connection:
            own = sa.and_(passes.c.id == pass_id, passes.c.team_id == team)
            if connection.execute(sa.select(passes.c.id).where(own)).first() is None:
                raise NotFoundError(f"There is no run pass {pass_id!r}.")
            unended = sa.update(passes).where(own, passes.c.ended_at.is_(None))
            connection.execute(unended.values(ended_at=datetime.now(UTC)))

    def calls(self, pass_id: str, after: int = 0) -> Sequence[sa.Row[Any]]:
        """Return the calls of a pass with numbers above `after`, in order."""
        return self._store.rows(calls_of_pass(pass_id, after))

    def clean(self) -> None:
        """Delete calls that their run's process has recorded; record those of expired passes whose process has died.

        A run's end follows its steps into the store.
        """
        passes, runs, now = tables.run_passes, tables.runs, self._store.clock.now()
        over = sa.or_(passes.c.ended_at.is_not(None), passes.c.expires_at < now)
        recorded = runs.c.status != "running"
        late = passes.c.expires_at < now - timedelta(seconds=UNRECORDED_SECONDS)
        query = (
            sa.select(passes.c.id, passes.c.trace_id, passes.c.team_id)
            .outerjoin(runs, runs.c.trace_id == passes.c.trace_id)
            .where(over, sa.or_(recorded, late))
            .limit(MOST_CLEANED)
        )
        for row in self._store.rows(query):
            try:
                self._record(row.team_id, row.trace_id)
            except HudError as error:
                _log.warning("Calls of run %s cannot be recorded: %s", row.trace_id, error)
            self._delete(row.id)

    def _record(self, team: str, trace_id: str) -> None:
        """Record the steps of a run's calls that its process has not recorded."""
        rows = self._store.rows(steps_in_order(trace_id))
        recorded = [exact_json.loads(payload) for _, payload in rows]
        steps = unrecorded_steps(self._store, trace_id, recorded)
        spans = [{"attributes": {"hud.schema": STEP_SCHEMA, "hud.payload": step}} for step in steps]
        if spans:
            ingest_spans(self._store, team, trace_id, spans)

    def _delete(self, pass_id: str) -> None:
        with self._store.begin() as connection:
            for table, column in _OF_PASS:
                connection.execute(sa.delete(table).where(column == pass_id))

    def over(self, pass_ids: Collection[str]) -> set[str]:
        """Return those of some passes that have ended, or whose opener's key is no longer valid."""
        passes, keys = tables.run_passes, tables.keys
        invalid = sa.not_(is_valid_key())
        query = (
            sa.select(passes.c.id)
            .outerjoin(keys, keys.c.id == passes.c.key_id)
            .where(passes.c.id.in_(sorted(pass_ids)))
            .where(sa.or_(passes.c.ended_at.is_not(None), invalid))
        )
        return set(self._store.values(query))


def ended() -> RunEndedError:
    """Return the error of a call after its run's end."""
    return RunEndedError("The run of this pass has ended; its model calls are refused.")


def over_tokens(limit: int) -> RunLimitError:
    """Return the error of a run whose tokens are used up."""
    return RunLimitError(f"This run may sample {limit:,} tokens.", "tokens")


def over_cost(limit: float) -> RunLimitError:
    """Return the error of a run whose dollars are used up."""
    return RunLimitError(f"This run's model calls may cost {limit:g} dollars.", "cost")


def _refuse_revoked(connection: sa.Connection, key_id: str | None) -> None:
    if key_id is None:
        return
    keys = tables.keys
    valid = sa.select(keys.c.id).where(keys.c.id == key_id, is_valid_key())
    if connection.execute(valid).first() is None:
        raise PlatformError("The key that opened this run pass is revoked or has expired.", 401)


def _over_limit(
    connection: sa.Connection, grant: RunGrant, row: sa.Row[Any]
) -> RunLimitError | None:
    """Return the error of a limit that is used up; refused calls do not count."""
    calls = tables.run_calls
    if grant.calls is not None:
        counted = sa.select(sa.func.count()).where(
            calls.c.pass_id == grant.pass_id, calls.c.status != "refused"
        )
        if connection.execute(counted).scalar_one() >= grant.calls:
            return RunLimitError(f"This run may make {grant.calls:,} model calls.", "calls")
    if grant.tokens is not None and row.tokens >= grant.tokens:
        return over_tokens(grant.tokens)
    if grant.cost_usd is not None and row.cost_usd >= grant.cost_usd:
        return over_cost(grant.cost_usd)
    return None


def _left(limit: float | None, used: float) -> float:
    return math.inf if limit is None else limit - used


def _packed(values: Sequence[Any]) -> bytes | None:
    return encode_json(list(values)) if values else None
