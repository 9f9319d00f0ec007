"""Commands that a Ray cluster keeps: start one, or a model's vLLM servers, list them, and end them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hud.errors import ConflictError, HudError, NotFoundError, PlatformError, UsageError
from hud_integrations.ray.cluster import Cluster, answers, connected
from hud_integrations.ray.keeper import KeptCommand
from hud_integrations.ray.members import Members, MemberSettings
from hud_integrations.ray.package import ray

CHECK_SECONDS = 60.0
ANSWER_SECONDS = 10.0
LOOK_SECONDS = 0.5
AFTER_NOTICE_SECONDS = 5.0
ENDED = ("done", "refused", "ended")
"""States of what does not run any more."""


def keep(address: str, settings: KeptCommand) -> None:
    """Start a command; it need not be placed yet. Raises `ConflictError` where one of that name is kept."""
    with connected(address, Cluster.of_kept()) as cluster:
        _refuse_twice(cluster, settings.name)
        cluster.start_keeper(settings)


def serve(address: str, settings: MemberSettings, on: Mapping[str, str]) -> None:
    """Start a model's servers, with the actor that names them to the platform on a node with the labels `on`.

    Raises `ConflictError` where there are some of that name, `UsageError` where the platform refuses the model or the key,
    or is not reached from the cluster, `PlatformError` 503 where nothing starts.
    """
    name = settings.server.name
    with connected(address, Cluster.of_kept()) as cluster:
        _refuse_twice(cluster, name)
        handle = cluster.start_members(Members, name, settings, on)
        answer = answers({"check": handle.check.remote()}, CHECK_SECONDS)["check"]
        if answer is True:
            return
        cluster.remove(handle)
        if answer is None:
            raise PlatformError(
                f"Nothing starts on the cluster within {CHECK_SECONDS:g} s; every node needs openhud[ray].",
                503,
            )
        raise UsageError(f"The servers cannot be named to {settings.url}: {_reason(answer)}")


def kept_commands(address: str) -> list[dict[str, Any]]:
    """Return the reports of all kept commands and servers, by name."""
    with connected(address, Cluster.of_kept()) as cluster:
        calls = {name: handle.report.remote() for name, handle in cluster.keepers().items()}
        reports = []
        for name, report in answers(calls, ANSWER_SECONDS).items():
            if not isinstance(report, dict):
                report = {"name": name, "state": "starting", "restarts": 0, "said": ""}
            reports += [report, *report.get("servers", ())]
        return reports


def end(address: str, name: str) -> None:
    """End a kept command, or a model's servers, within their notice.

    Raises `NotFoundError` where there is none, `UsageError` where the platform does not let servers go.
    """
    with connected(address, Cluster.of_kept()) as cluster:
        handle = cluster.keeper(name)
        if handle is None:
            raise NotFoundError(f"The cluster keeps nothing named {name!r}: hud fleet ray kept")
        notice = answers({"notice": handle.stop.remote()}, CHECK_SECONDS)["notice"]
        if isinstance(notice, ray.exceptions.RayTaskError):
            raise UsageError(f"{name} goes on: {_reason(notice)}")
        servers = cluster.gang(name)
        until = time.monotonic() + (notice or 0.0) + AFTER_NOTICE_SECONDS
        while not _over([handle, *servers.values()]) and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
        # First the one that would start others.
        cluster.remove(handle)
        for server, actor in servers.items():
            cluster.remove(actor)
            cluster.free_gang(server)


def _refuse_twice(cluster: Cluster, name: str) -> None:
    if cluster.keeper(name) is not None:
        raise ConflictError(
            f"The cluster keeps {name!r} already. To end it: hud fleet ray end {name}"
        )


def _over(handles: list[Any]) -> bool:
    """True once all commands have ended, or do not run."""
    calls = {str(number): handle.report.remote() for number, handle in enumerate(handles)}
    reports = answers(calls, ANSWER_SECONDS).values()
    return all(not isinstance(report, dict) or report["state"] in ENDED for report in reports)


def _reason(error: Exception) -> str:
    """Return the sentence of an error that an actor raised."""
    cause = getattr(error, "cause", None)
    return str(cause) if isinstance(cause, HudError) else str(error).strip().splitlines()[-1]
