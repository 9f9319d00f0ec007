"""Nodes of the fleet: workers that joined, with their labels, capacity and load."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa

from hud.errors import NotFoundError, PlatformError
from hud.trace import dashed, new_id
from hud_platform.access import Identity
from hud_platform.access.audit_log import Action
from hud_platform.rollouts.matching import Offer
from hud_platform.store import Store, tables
from hud_platform.store.queries import Row

State = Literal["open", "cordoned", "draining"]
"""`open`: takes rollouts. `cordoned`: takes none, and stays. `draining`: takes none, and leaves when it holds none."""
STATES: dict[str, tuple[State, Action]] = {
    "cordon": ("cordoned", "node cordoned"),
    "open": ("open", "node opened"),
    "drain": ("draining", "node drained"),
}
"""State and entry of the audit log, by action."""
SILENT_SECONDS = 30.0
"""Seconds without a sign of life after which a node counts as lost."""
KNOWN_SECONDS = 1.0
"""Maximum delay, in seconds, of a change of a node's state that another server made."""
_MOST_KNOWN = 10_000
MOST_NODES = 5_000
"""Nodes of one pass that are remembered; the longest silent ones are forgotten first."""
KEPT = timedelta(days=7)
"""Time for which a node that is gone is remembered."""
SQLITE_ROOM = 4096
"""Rollouts in flight from which on PostgreSQL is advised: see docs/fleet.md."""
ALARM_FAILURES = 5
"""Rollouts in a row that infrastructure or the environment broke after which a node raises an alarm."""


@dataclass(frozen=True)
class Node:
    """A node, as the routes of workers know it."""

    worker: str
    """The name under which it holds leases."""
    team_id: str | None
    """The team whose rollouts it takes; None: of every team."""
    state: State
    labels: dict[str, str]
    capacity: dict[str, Any]

    @property
    def rollouts(self) -> int:
        """Most rollouts that it plays at a time."""
        return int(self.capacity.get("rollouts", 1))

    def offer(self, free: dict[str, float]) -> Offer:
        """Return what it has to give now."""
        full = Offer.of_machine(self.labels, self.capacity)
        left = {name: min(most, free.get(name, most)) for name, most in full.free.items()}
        return Offer(self.labels, self.capacity, left)


def holder(who: Identity, name: str) -> str:
    """Return the name under which a worker's leases are held.

    For a worker with a pass: a digest of its own name, which no other worker has, and of the pass; pages and traces show
    the digest alone. Raises `PlatformError` 403 for a caller that is no worker.
    """
    if not who.worker:
        raise PlatformError("Workers of the fleet alone take rollouts; a pass lets one join.", 403)
    if who.key_id is None:
        return name
    return "node/" + hashlib.sha256(f"{who.key_id}:{name}".encode()).hexdigest()[:32]


class Nodes:
    """The nodes of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._known: dict[str, tuple[float, Node]] = {}

    def join(
        self,
        who: Identity,
        name: str,
        *,
        shown: str,
        labels: dict[str, str],
        capacity: dict[str, Any],
        version: str,
    ) -> str:
        """Register a worker, or that it came back; returns the node's id."""
        nodes, now, worker = tables.fleet_nodes, self.store.clock.now(), holder(who, name)
        self._known.clear()
        columns = {"name": shown, "labels": labels, "capacity": capacity, "version": version}
        with self.store.begin() as connection:
            connection.execute(sa.delete(nodes).where(nodes.c.seen_at < now - KEPT))
            query = sa.select(nodes.c.id).where(nodes.c.worker == worker).with_for_update()
            node_id = connection.execute(query).scalar()
            if node_id is not None:
                again = sa.update(nodes).where(nodes.c.worker == worker)
                connection.execute(again.values(**columns, seen_at=now, left_at=None))
                return str(node_id)
            row = {
                **columns,
                "worker": worker,
                "id": new_id(),
                "team_id": who.team_id,
                "key_id": who.key_id,
                "state": "open",
                "load": {},
                "preemptions": 0,
                "joined_at": now,
                "seen_at": now,
            }
            connection.execute(sa.insert(nodes).values(**row))
            if who.key_id is not None:
                _forget_surplus(connection, who.key_id)
            return str(row["id"])

    def of(self, who: Identity, name: str) -> Node:
        """Return the node that a request comes from. Raises `NotFoundError` for one that did not join."""
        nodes, worker, now = tables.fleet_nodes, holder(who, name), time.monotonic()
        until, cached = self._known.get(worker, (0.0, None))
        if cached is not None and now < until:
            return cached
        row = self.store.row(sa.select(nodes).where(nodes.c.worker == worker))
        if row is None:
            raise NotFoundError(
                "This worker has not joined the fleet, or is forgotten: join again."
            )
        team = None if row.key_id is None else row.team_id
        node = Node(row.worker, team, row.state, row.labels, row.capacity)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[worker] = now + KNOWN_SECONDS, node
        return node

    def heard(self, node: Node, load: dict[str, Any]) -> None:
        """Note a sign of life, and what the worker says of its load."""
        nodes = tables.fleet_nodes
        update = sa.update(nodes).where(nodes.c.worker == node.worker)
        self.store.write(update.values(load=load, seen_at=self.store.clock.now()))

    def leave(self, node: Node) -> None:
        """Note that a worker ended in order."""
        nodes = tables.fleet_nodes
        update = sa.update(nodes).where(nodes.c.worker == node.worker)
        self.store.write(update.values(left_at=self.store.clock.now()))
        self._known.clear()

    def set_state(self, team: str, reference: str, state: State) -> dict[str, Any]:
        """Cordon, drain or open a node of a team; returns it. Raises `NotFoundError` unless exactly one matches."""
        matching = [
            node
            for node in self.all(team)
            if reference in (node["id"], node["id"].replace("-", ""), node["name"])
        ] or [
            node
            for node in self.all(team)
            if len(reference) >= 4 and node["id"].startswith(reference)
        ]
        if len(matching) != 1:
            raise NotFoundError(
                f"There is no node {reference!r}; hud fleet nodes lists them."
                if not matching
                else f"Several nodes are called {reference!r}; give the id."
            )
        nodes = tables.fleet_nodes
        update = sa.update(nodes).where(nodes.c.id == matching[0]["id"].replace("-", ""))
        self.store.write(update.values(state=state))
        self._known.clear()
        return {**matching[0], "state": state}

    def all(self, team: str) -> list[dict[str, Any]]:
        """Return the nodes of a team, those that live first; of the first team with the server's own."""
        nodes = tables.fleet_nodes
        query = sa.select(nodes).where(nodes.c.team_id == team)
        rows, now = (
            self.store.rows(query.order_by(nodes.c.joined_at.desc(), nodes.c.id)),
            self.store.clock.now(),
        )
        return sorted(
            (_shown(row, now) for row in rows), key=lambda node: node["status"] in ("left", "lost")
        )

    def notice(self, items: list[dict[str, Any]]) -> str | None:
        """Return a sentence where these nodes have room for more rollouts than SQLite's one writer serves well."""
        live = [node for node in items if node["status"] not in ("left", "lost")]
        room = sum(node["room"] for node in live)
        if self.store.engine.dialect.name != "sqlite" or room < SQLITE_ROOM:
            return None
        return (
            f"The fleet has room for {room:,} rollouts, and the store is SQLite, whose one writer will be the limit: "
            "serve with hud up --database postgresql://..."
        )

    def offers(self, team: str) -> list[Offer]:
        """Return what the nodes that play a team's rollouts have when they are idle; the lost ones of the last hour, too."""
        nodes = tables.fleet_nodes
        return self._offers(sa.or_(nodes.c.team_id == team, nodes.c.key_id.is_(None)))

    def offers_by(self, key_id: str | None) -> list[Offer]:
        """Return what the nodes that joined with a pass have when they are idle; the lost ones of the last hour, too."""
        return self._offers(tables.fleet_nodes.c.key_id.is_not_distinct_from(key_id))

    def _offers(self, which: sa.ColumnElement[bool]) -> list[Offer]:
        nodes = tables.fleet_nodes
        recent = nodes.c.seen_at > self.store.clock.now() - timedelta(hours=1)
        query = sa.select(nodes.c.labels, nodes.c.capacity).where(recent, which)
        return [Offer.of_machine(row.labels, row.capacity) for row in self.store.rows(query)]


def _forget_surplus(connection: sa.Connection, key_id: str) -> None:
    """Delete the longest silent nodes of a pass beyond `MOST_NODES`."""
    nodes = tables.fleet_nodes
    latest_first = sa.select(nodes.c.seen_at).where(nodes.c.key_id == key_id)
    oldest = latest_first.order_by(nodes.c.seen_at.desc()).offset(MOST_NODES - 1).limit(1)
    bound = connection.execute(oldest).scalar()
    if bound is not None:
        surplus = (nodes.c.key_id == key_id, nodes.c.seen_at < bound)
        connection.execute(sa.delete(nodes).where(*surplus))


def _has(capacity: dict[str, Any]) -> str:
    """Return a capacity in words: 4 cores, 8 GiB, 1 GPU, linux-x86_64-cp311."""
    gpus = int(capacity.get("gpus") or 0)
    parts = [
        f"{float(capacity.get('cpus') or 0):g} cores",
        f"{float(capacity.get('memory_mb') or 0) / 1024:.0f} GiB",
        f"{gpus} GPU" if gpus else "",
        "images" if capacity.get("images") else "",
        str(capacity.get("platform") or ""),
    ]
    return ", ".join(part for part in parts if part)


def _shown(row: Row, now: datetime) -> dict[str, Any]:
    silent = (now - row.seen_at).total_seconds()
    gone = "left" if row.left_at is not None else "lost" if silent > SILENT_SECONDS else None
    load = row.load or {}
    failures = int(load.get("failures_in_a_row", 0))
    return {
        "id": dashed(row.id),
        "name": row.name,
        "own": row.key_id is None,
        "status": gone or row.state,
        "state": row.state,
        "labels": row.labels,
        "capacity": row.capacity,
        "has": _has(row.capacity),
        "room": int(row.capacity.get("rollouts", 0)),
        "version": row.version,
        "running": 0 if gone else int(load.get("running", 0)),
        "finished": int(load.get("finished", 0)),
        "broken": int(load.get("broken", 0)),
        "per_minute": 0.0 if gone else float(load.get("per_minute", 0.0)),
        "preemptions": row.preemptions,
        "alarm": (
            f"Its last {failures} rollouts all broke." if failures >= ALARM_FAILURES else None
        ),
        "joined_at": row.joined_at.isoformat(),
        "seen_at": row.seen_at.isoformat(),
        "left_at": None if row.left_at is None else row.left_at.isoformat(),
    }
