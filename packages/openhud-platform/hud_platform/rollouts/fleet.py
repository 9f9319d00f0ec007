"""`Fleet`: the queue of rollouts and the nodes that play them, as one part of a platform."""

from __future__ import annotations

import asyncio
from typing import Any

from hud_platform.access.keys import Keys
from hud_platform.access.passes import Passes
from hud_platform.models.registry import Registry
from hud_platform.rollouts.handover import Handover
from hud_platform.rollouts.nodes import Node, Nodes
from hud_platform.rollouts.rollout_queue import Rollouts
from hud_platform.rollouts.rollout_snapshots import RolloutSnapshots


class Fleet:
    """The fleet of one platform."""

    def __init__(
        self,
        keys: Keys,
        passes: Passes,
        registry: Registry,
        lease_seconds: float,
        stopping: asyncio.Event,
    ) -> None:
        self.rollouts = Rollouts(registry.store)
        self.rollouts.lease_seconds = lease_seconds
        self.nodes = Nodes(registry.store)
        self.snapshots = RolloutSnapshots(self.rollouts, stopping)
        self.handover = Handover(keys, passes, registry)

    def take(
        self, node: Node, most: int, ahead: int, free: dict[str, float], *, here: bool
    ) -> list[dict[str, Any]]:
        """Lease rollouts to a node, and return them as its worker gets them; see `Rollouts.take_for` and `Handover.all`."""
        taken = self.rollouts.take_for(node, most, free, ahead=ahead)
        if not taken:
            return []
        with_one = self.snapshots.those_with_one([rollout.trace_id for rollout in taken])
        items = self.handover.all(taken, here=here)
        return [{**item, "snapshot": item["trace_id"] in with_one} for item in items]
