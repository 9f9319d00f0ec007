"""Gauges of what waits in a server, read when the metrics are requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from hud.platform.environments.build_queue import Builds
from hud.platform.rollouts.queue import Rollouts

if TYPE_CHECKING:
    from hud.platform.metrics import Metrics
    from hud.platform.serving.token_engine import TokenEngine
    from hud.platform.store import Store
    from hud.platform.store.telemetry_admission import Intake


def measure_queues(
    metrics: Metrics, store: Store, intake: Intake, engine: TokenEngine | None
) -> None:
    """Set the gauges of every queue."""
    sizes = {
        "streams": 0 if engine is None else engine.streams,
        "telemetry": intake.uploads,
    }
    with store.read() as connection:
        for queue in (Rollouts, Builds):
            waiting = sa.select(sa.func.count()).where(queue.table.c.status == queue.waiting)
            sizes[queue.table.name] = connection.execute(waiting).scalar_one()
    for name, size in sizes.items():
        metrics.queues.labels(name).set(size)
    metrics.telemetry_bytes.set(intake.bytes)
