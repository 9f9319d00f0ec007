"""Gauges of what waits in a server, read when the metrics are requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from hud.platform.environments.build_queue import Builds
from hud.platform.rollouts.queue import Rollouts

if TYPE_CHECKING:
    from hud.platform.platform import Platform


def measure_queues(platform: Platform) -> None:
    """Set the gauges of every queue."""
    sizes = {"streams": platform.streams, "telemetry": platform.intake.uploads}
    with platform.store.read() as connection:
        for queue in (Rollouts, Builds):
            waiting = sa.select(sa.func.count()).where(queue.table.c.status == queue.waiting)
            sizes[queue.table.name] = connection.execute(waiting).scalar_one()
    for name, size in sizes.items():
        platform.metrics.queues.labels(name).set(size)
    platform.metrics.telemetry_bytes.set(platform.intake.bytes)
