"""Launching a fleet on a Ray cluster: start its supervisor, ask it, end it with its hosts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hud.errors import ConflictError, NotFoundError, PlatformError, UsageError
from hud_integrations.ray.cluster import Cluster, answers, connected
from hud_integrations.ray.package import ray
from hud_integrations.ray.placement import FleetSettings
from hud_integrations.ray.supervisor import Supervisor

START_SECONDS = 60.0
STOP_SECONDS = 30.0
"""Time beyond the notice after which hosts are killed; their workers then hand back at once what they play."""
ANSWER_SECONDS = 10.0
LOOK_SECONDS = 0.5


def up(address: str, settings: FleetSettings, supervisor_on: Mapping[str, str]) -> dict[str, Any]:
    """Start a fleet; returns its first status.

    Raises `ConflictError` where it runs already, `UsageError` where the platform refuses the pass or is not reached from
    the cluster, `PlatformError` where the supervisor does not start.
    """
    with connected(address, Cluster(settings.name)) as cluster:
        if cluster.supervisor() is not None:
            raise ConflictError(
                f"The fleet {settings.name!r} is up on this cluster. To change it: hud fleet ray down, then up again."
            )
        handle = cluster.start_supervisor(Supervisor, settings, supervisor_on)
        until = time.monotonic() + START_SECONDS
        while (status := _status(handle)) is None:
            if time.monotonic() > until:
                cluster.remove(handle)
                wanted = " ".join(f"{name}={value}" for name, value in supervisor_on.items())
                raise PlatformError(
                    f"The supervisor did not start within {START_SECONDS:g} s; every node of the cluster needs "
                    f"openhud[ray,environments]{f', and one the labels {wanted}' if wanted else ''}.",
                    503,
                )
            time.sleep(LOOK_SECONDS)
        if status["problem"] is not None:
            _end(cluster, handle)
            raise UsageError(f"The supervisor cannot use {settings.url}: {status['problem']}")
        return status


def status(address: str, name: str) -> dict[str, Any]:
    """Return the status of a fleet. Raises `NotFoundError` where there is none, `PlatformError` 503 while it starts."""
    with connected(address, Cluster(name)) as cluster:
        report = _status(_supervisor(cluster))
        if report is None:
            raise PlatformError(
                f"The supervisor of the fleet {name!r} does not answer: Ray (re)starts it.", 503
            )
        return report


def down(address: str, name: str) -> int:
    """End a fleet: its hosts within its notice, then the supervisor; returns how many hosts there were.

    Raises `NotFoundError` where there is none.
    """
    with connected(address, Cluster(name)) as cluster:
        return _end(cluster, _supervisor(cluster))


def _supervisor(cluster: Cluster) -> Any:
    handle = cluster.supervisor()
    if handle is None:
        raise NotFoundError(
            f"There is no fleet {cluster.name!r} on this cluster. Start one: hud fleet ray up URL"
        )
    return handle


def _status(handle: Any) -> dict[str, Any] | None:
    """Return what a supervisor found; None where it does not answer (yet)."""
    report = answers({"status": handle.status.remote()}, ANSWER_SECONDS)["status"]
    return None if isinstance(report, ray.exceptions.RayError) else report


def _end(cluster: Cluster, supervisor: Any) -> int:
    count = len(cluster.hosts())
    notice = answers({"notice": supervisor.stop.remote()}, ANSWER_SECONDS)["notice"]
    # A supervisor that does not answer stops no host.
    answered = isinstance(notice, int | float)
    until = time.monotonic() + (notice + STOP_SECONDS if answered else 0.0)
    while cluster.hosts() and time.monotonic() < until:
        time.sleep(LOOK_SECONDS)
    # First the one that would start others.
    cluster.remove(supervisor)
    for host in cluster.hosts().values():
        cluster.remove(host)
    return count
