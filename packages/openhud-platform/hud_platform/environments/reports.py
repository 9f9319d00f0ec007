"""Reports on environments: builds, running sessions, and the resources of their processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from hud.trace import plain
from hud.trace.recorded_time import seconds_between
from hud_platform.environments import registry
from hud_platform.store import Store, tables
from hud_platform.store.queries import Row

if TYPE_CHECKING:
    from hud_platform.environments.runtime_sessions import RuntimeSessions

WORDS = {
    "WAITING": "waiting",
    "QUEUED": "queued",
    "IN_PROGRESS": "building",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
}
"""Display names of the states of builds."""
OVER = ("succeeded", "failed")
_BUILD_COLUMNS = ("id", "environment_id", "version", "error", "worker", "manifest")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Process:
    """Process of this machine that serves an environment."""

    pid: int
    seconds: float | None
    """Seconds since its start."""
    memory_bytes: int
    """Resident, shared pages included."""


def builds_page(
    store: Store, team: str, environment_id: str | None, limit: int, offset: int
) -> tuple[list[dict[str, Any]], int]:
    """Return a page of a team's builds, of one environment or of all, newest first, and their total number."""
    builds = tables.builds
    wanted = [builds.c.team_id == team]
    if environment_id is not None:
        wanted.append(builds.c.environment_id == environment_id)
    query = sa.select(builds).where(*wanted).order_by(builds.c.created_at.desc(), builds.c.id)
    rows, total = store.page(query, limit, offset)
    return [_build(row) for row in rows], total


def find_build(store: Store, team: str, build_id: str) -> dict[str, Any]:
    """Return one build of a team. Raises `NotFoundError` where there is none."""
    return _build(registry.find_build(store, team, build_id))


def last_lines(store: Store, build_id: str, most: int | None) -> tuple[list[str], int]:
    """Return the last `most` lines of a build's log (None: all), and the number of lines."""
    lines = tables.build_lines
    of_build = sa.select(lines.c.text).where(lines.c.build_id == build_id)
    rows, total = store.page(of_build.order_by(lines.c.number.desc()), most, 0)
    return [row.text for row in reversed(rows)], total


def builds_under_way(store: Store, team: str) -> dict[str, str]:
    """Return the state of each environment's newest build if it has not succeeded, by the environment's id."""
    builds = tables.builds
    newest = (
        sa.select(builds.c.environment_id, sa.func.max(builds.c.created_at).label("at"))
        .where(builds.c.team_id == team, builds.c.environment_id.is_not(None))
        .group_by(builds.c.environment_id)
        .subquery()
    )
    same = sa.and_(
        builds.c.environment_id == newest.c.environment_id, builds.c.created_at == newest.c.at
    )
    query = sa.select(builds.c.environment_id, builds.c.status).join(newest, same)
    rows = store.rows(query.where(builds.c.status != "SUCCEEDED"))
    return {row.environment_id: WORDS.get(row.status, row.status) for row in rows}


def running(
    store: Store, sessions: RuntimeSessions, team: str, environment: dict[str, Any]
) -> dict[str, Any]:
    """Return the running parts of an environment: sessions, human baselines, rollouts, and its processes on this machine.
    Processes include workers that keep the environment warm.
    """
    identifier, name = plain(environment["id"]), environment["name"]
    builds, rollouts = tables.builds, tables.rollouts
    folders = store.rows(
        sa.select(builds.c.id, builds.c.folder, builds.c.version).where(
            builds.c.environment_id == identifier,
            builds.c.team_id == team,
            builds.c.folder.is_not(None),
        )
    )
    open_rollouts = store.rows(
        sa.select(rollouts.c.status, sa.func.count())
        .where(
            rollouts.c.team_id == team,
            rollouts.c.status.in_(("queued", "running", "cancelling")),
            rollouts.c.spec["env"].as_string() == name,
        )
        .group_by(rollouts.c.status)
    )
    ours = {row.id for row in folders}
    return {
        "sessions": [
            {
                "id": session.id,
                "started_at": session.started_at.isoformat(),
                "tunnels": session.tunnels,
                "version": session.environment.version,
            }
            for session in sessions.of_team(team)
            if session.environment.build_id in ours
        ],
        "rollouts": {status: int(count) for status, count in open_rollouts},
        "processes": [asdict(process) for process in processes_of(row.folder for row in folders)],
    }


def processes_of(folders: Iterable[str]) -> list[Process]:
    """Return the processes of this machine whose command line contains a file of one of these folders. Linux only; empty on
    other systems."""
    wanted = [f"{folder.rstrip('/')}/".encode() for folder in folders]
    proc = Path("/proc")
    if not wanted or not proc.is_dir():
        return []
    processes = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if any(folder in command for folder in wanted):
                processes.append(_process(entry))
        except OSError:
            continue  # It has ended, or belongs to another user.
    return sorted(processes, key=lambda process: process.pid)


def _process(entry: Path) -> Process:
    pages = int((entry / "statm").read_text().split()[1])
    # Fields after the bracketed name, which may contain any text; the start time is field 22.
    started = int((entry / "stat").read_text().rpartition(")")[2].split()[19])
    up = float(Path("/proc/uptime").read_text().split()[0])
    seconds = max(0.0, up - started / os.sysconf("SC_CLK_TCK"))
    return Process(int(entry.name), seconds, pages * _PAGE_BYTES)


def _build(row: Row) -> dict[str, Any]:
    moments = ("created_at", "started_at", "ended_at")
    return {
        **{name: getattr(row, name) for name in _BUILD_COLUMNS},
        "status": WORDS.get(row.status, row.status),
        "name": row.options.get("name"),
        "attempt": row.attempt or None,
        "seconds": seconds_between(row.started_at, row.ended_at),
        **{name: at.isoformat() if (at := getattr(row, name)) else None for name in moments},
    }
