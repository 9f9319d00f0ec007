"""How much waits in a server, as its metrics tell it: read when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from hud.platform.environments.build_queue import QUEUED
from hud.platform.store import tables

if TYPE_CHECKING:
    from hud.platform.platform import Platform


def measure_queues(platform: Platform) -> None:
    """Bring the gauges of everything that queues up to date."""
    sizes = {"streams": platform.streams, "telemetry": platform.intake.uploads}
    with platform.store.read() as connection:
        for name, table, status in (
            ("rollouts", tables.rollouts, "queued"),
            ("builds", tables.builds, QUEUED),
        ):
            waiting = sa.select(sa.func.count()).where(table.c.status == status)
            sizes[name] = connection.execute(waiting).scalar_one()
    for name, size in sizes.items():
        platform.metrics.queues.labels(name).set(size)
    platform.metrics.telemetry_bytes.set(platform.intake.bytes)
