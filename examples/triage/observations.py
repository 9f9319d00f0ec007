"""Observations of an incident's world: what its tools answer, each a function of the world's database and a service's name."""

from __future__ import annotations

from sqlite3 import Connection

import world

from hud import Environment


def get_issues(database: Connection, service: str) -> str:
    """Open issues."""
    rows = database.execute("SELECT service, class FROM issues WHERE service GLOB ?", (service,))
    return "\n".join(f"{service}: {error}" for service, error in rows) or "no issues"


def get_stack_trace(database: Connection, service: str) -> str:
    """Latest error."""
    row = database.execute(
        "SELECT class, frame, upstream FROM events WHERE service = ? ORDER BY minute DESC",
        (service,),
    ).fetchone()
    if row is None:
        return "no errors"
    error, frame, upstream = row
    return f"{error} in {frame}({upstream or ''})"


def query_metrics(database: Connection, service: str) -> str:
    """Trends of the last hour."""
    rows = database.execute(
        "SELECT metric, AVG(CASE WHEN minute <= -40 THEN value END), MAX(value) FROM metrics "
        "WHERE service = ? GROUP BY metric ORDER BY metric",
        (service,),
    )
    return (
        ", ".join(f"{metric} {_trend(before, peak)}" for metric, before, peak in rows) or "no data"
    )


def list_deploys(database: Connection, service: str) -> str:
    """Latest deploy."""
    row = database.execute(
        "SELECT version, minute FROM deploys WHERE service = ?", (service,)
    ).fetchone()
    return f"v{row[0]} {_age(row[1])}" if row else "no deploys"


def list_flags(database: Connection, service: str) -> str:
    """Latest flag change."""
    row = database.execute(
        "SELECT flag, minute FROM flags WHERE service = ?", (service,)
    ).fetchone()
    return f"{row[0]} {_age(row[1])}" if row else "no flags"


def get_certificate(database: Connection, service: str) -> str:
    """State of its certificate."""
    row = database.execute(
        "SELECT expires_minute FROM certificates WHERE service = ?", (service,)
    ).fetchone()
    if row is None:
        return "no certificate"
    return "expired" if row[0] <= 0 else "valid"


def list_dependencies(database: Connection, service: str) -> str:
    """What it calls."""
    rows = database.execute(
        "SELECT upstream, status FROM dependencies WHERE service = ?", (service,)
    )
    return ", ".join(f"{upstream} {status}" for upstream, status in rows) or "nothing"


def _trend(before: float, peak: float) -> str:
    """Say in a word how a metric moved against its level at the start of the window."""
    if peak > 5 * before:
        return "jumped"
    return "climbing" if peak > 1.5 * before else "flat"


def _age(minute: int) -> str:
    return "minutes ago" if minute > -world.WINDOW else "days ago"


LOOKS = (
    get_issues,
    get_stack_trace,
    query_metrics,
    list_deploys,
    list_flags,
    get_certificate,
    list_dependencies,
)


def offer(environment: Environment, name: str) -> None:
    """Add an observation to an environment as a tool; runs keep the world's database in `env.state.database`."""
    [look] = [look for look in LOOKS if look.__name__ == name]

    async def tool(service: str) -> str:
        return look(environment.state.database, service)

    tool.__name__, tool.__doc__ = look.__name__, look.__doc__
    environment.tool(tool)
