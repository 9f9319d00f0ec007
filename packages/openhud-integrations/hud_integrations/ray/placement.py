"""Placement: how many hosts a queue needs, and on which nodes they start, drain, stop, or are forgotten."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

LOWER_SECONDS = 60.0
"""Time for which fewer hosts must be enough before some are drained."""
MARGIN_SECONDS = 3.0
"""Time before the end of a node at which its worker hands everything back."""

HostState = Literal["starting", "running", "draining", "stopping", "ended", "drained"]
"""`starting`: no word of it yet, or Ray restarts it. `draining`, `stopping`: at the supervisor's wish. `ended`: its worker
ended at that wish. `drained`: its worker ended in order by itself: the platform drained the node, which stays empty."""


@dataclass(frozen=True)
class FleetSettings:
    """Settings of a fleet on a Ray cluster."""

    url: str
    """Address of the platform, as the cluster's nodes reach it."""
    key: str = field(repr=False)
    """Pass with which the workers join."""
    name: str
    least: int
    most: int
    """Bounds of the number of hosts."""
    rollouts: int
    """Most rollouts of a host at a time."""
    on: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have."""
    cache: str | None = None
    """Folder for fetched environments on each node; None: HUD_HOME/fleet."""
    notice: float = 15.0
    """Seconds that rollouts have to end when their host stops."""
    images: bool = False


@dataclass(frozen=True)
class Node:
    """A living node of the cluster."""

    id: str
    address: str
    labels: Mapping[str, str]
    ends_at: float | None = None
    """Unix time at which a draining node ends; `math.inf`: it drains without a deadline; None: it does not drain."""

    def suits(self, wanted: Mapping[str, str]) -> bool:
        """True where it has these labels."""
        return all(self.labels.get(name) == value for name, value in wanted.items())

    @property
    def shown(self) -> str:
        """Name of its worker, as the fleet's pages show it."""
        return f"{self.address}-{self.id[:6]}"


class Scaling:
    """Number of hosts by the length of the queue: more at once, fewer when fewer were enough for `LOWER_SECONDS`."""

    def __init__(self, least: int, most: int, rollouts: int) -> None:
        self.least, self.most, self.rollouts = least, most, rollouts
        self.wanted = least
        self._recent: deque[tuple[float, int]] = deque()

    def next(self, queue: Mapping[str, Any] | None, now: float) -> int:
        """Return the number of hosts from now on. `queue`: `waiting` and `running` rollouts; None: unknown."""
        if queue is None:
            return self.wanted
        enough = math.ceil((queue["waiting"] + queue["running"]) / self.rollouts)
        self._recent.append((now, min(max(enough, self.least), self.most)))
        while self._recent[0][0] < now - LOWER_SECONDS:
            self._recent.popleft()
        self.wanted = max(hosts for _, hosts in self._recent)
        return self.wanted


@dataclass
class Changes:
    """Differences between the hosts that are there and those that are to be."""

    start: list[Node] = field(default_factory=list)
    drain: list[str] = field(default_factory=list)
    """Nodes whose worker takes nothing more, and ends when it holds nothing."""
    stop: dict[str, float] = field(default_factory=dict)
    """Nodes whose worker ends now, and the seconds until it has handed everything back."""
    forget: list[str] = field(default_factory=list)
    """Nodes whose host is removed."""


def changes(
    nodes: Sequence[Node],
    hosts: Mapping[str, HostState],
    wanted: int,
    *,
    now: float,
    notice: float,
    avoid: frozenset[str] = frozenset(),
) -> Changes:
    """Return what to change. `hosts`: the states of hosts by node, oldest first; `avoid`: nodes that get none for now."""
    living = {node.id: node for node in nodes}
    planned, active = Changes(), []
    for node_id, state in hosts.items():
        node = living.get(node_id)
        if node is None or state == "ended":
            planned.forget.append(node_id)
        elif state in ("stopping", "drained"):
            continue
        elif node.ends_at is not None:
            planned.stop[node_id] = min(notice, max(0.0, node.ends_at - now - MARGIN_SECONDS))
        elif state != "draining":
            active.append(node_id)
    planned.drain = active[wanted:]
    free = [
        node
        for node in nodes
        if node.id not in hosts and node.id not in avoid and node.ends_at is None
    ]
    planned.start = free[: max(0, wanted - len(active))]
    return planned


def endings(
    nodes: Sequence[Node], hosts: Mapping[str, HostState], *, now: float, notice: float
) -> Changes:
    """Return what to change where every host is to end: those that play stop, the others are removed."""
    planned = changes(nodes, hosts, 0, now=now, notice=notice)
    planned.drain = []
    for node_id, state in hosts.items():
        if state == "drained" and node_id not in planned.forget:
            planned.forget.append(node_id)
        elif state in ("starting", "running", "draining") and node_id not in planned.forget:
            planned.stop.setdefault(node_id, notice)
    return planned
