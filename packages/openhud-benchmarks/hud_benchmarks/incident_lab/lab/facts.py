"""Facts about a service in each area of an incident, read from the recording: specialists are graded by them.

The incident's own finding comes from who injected the fault, not from here.
"""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass

SERVICES = ("storefront", "catalog", "orders", "payments", "bank", "worker", "cache")
MANY_ENTRIES = 50
MANY_WAITING = 2
MANY_SESSIONS = 10
BACKLOG = 12
BLAME = re.compile(r"(\w+)(?:: | answered | refused )")
ROUTE = re.compile(r"/\* (.+?) \*/")
DROPPED = re.compile(r"DROP INDEX (\w+)")

SIGNS = {
    "errors": "the class of the error that the service reported most often since the alert; detail: the service "
    "that its message blames, else none. No such error: none, none",
    "metrics": "memory_grows (a memo came to hold 50 results or more; detail: the memo), else pool_full (more than 2 "
    "requests waited for a database connection; detail: none), else normal, none",
    "database": "idle_transactions (a query that names its route was seen idle in transaction 10 times or more; "
    "detail: the route, as GET /path), else missing_index (a migration dropped an index, and queries of the service "
    "time out or are slow; detail: the index), else normal, none",
    "changes": "deploy (detail: the release) or flag (detail: the flag): the last change of the service on the day of "
    "the alert. No change: none, none",
    "queue": "unreachable (the cache does not answer; detail: none), else blocked (12 messages or more wait; detail: "
    "the id of the message that is being worked on, or is next), else moving, none",
    "containers": "evicted, oom_killed or crash_loop (it failed or was restarted; detail: the pod), else "
    "certificate_expired (detail: its serial number), else running, none",
}
"""Report of each area's specialist: a sign and a detail."""

AREAS = {
    "pool_exhaustion": "database", "dropped_index": "database", "bad_deploy": "changes",
    "wrong_flag": "changes", "expired_certificate": "containers", "dead_dependency": "containers",
    "memory_leak": "metrics", "poisoned_message": "queue",
}  # fmt: skip
"""Area that shows the culprit of each cause."""


@dataclass(frozen=True)
class Fact:
    """The right report of a specialist."""

    sign: str
    detail: str = "none"


def facts(database: sqlite3.Connection) -> dict[str, dict[str, Fact]]:
    """Return the facts by area and service."""
    looks = {
        "errors": _errors, "metrics": _metrics, "database": _database, "changes": _changes,
        "queue": _queue, "containers": _containers,
    }  # fmt: skip
    return {area: {name: look(database, name) for name in SERVICES} for area, look in looks.items()}


def _errors(database: sqlite3.Connection, service: str) -> Fact:
    row = database.execute(
        "SELECT error, message FROM issues, page WHERE service = ? AND last_seen >= page.time "
        "ORDER BY events DESC, issue LIMIT 1",
        (service,),
    ).fetchone()
    if row is None:
        return Fact("none")
    blamed = BLAME.match(row[1])
    return Fact(row[0], blamed[1] if blamed and blamed[1] in SERVICES else "none")


def _metrics(database: sqlite3.Connection, service: str) -> Fact:
    row = database.execute(
        "SELECT substr(labels, 6), max(value) FROM metrics WHERE service = ? AND metric = 'memo_entries' "
        "GROUP BY 1 ORDER BY 2 DESC",
        (service,),
    ).fetchone()
    if row is not None and row[1] >= MANY_ENTRIES:
        return Fact("memory_grows", row[0])
    (waiting,) = database.execute(
        "SELECT max(value) FROM metrics WHERE service = ? AND metric = 'db_pool_waiting'",
        (service,),
    ).fetchone()
    return Fact("pool_full" if (waiting or 0) > MANY_WAITING else "normal")


def _database(database: sqlite3.Connection, service: str) -> Fact:
    for query, seen in database.execute(
        "SELECT query, count(*) FROM pg_stat_activity WHERE service = ? AND state = 'idle in transaction' "
        "GROUP BY 1 ORDER BY 2 DESC",
        (service,),
    ):
        if seen >= MANY_SESSIONS and (route := ROUTE.search(query)):
            return Fact("idle_transactions", route[1])
    (slow,) = database.execute(
        "SELECT count(*) FROM pg_log WHERE service = ? AND (message LIKE '%duration:%' OR message LIKE "
        "'%statement timeout%')",
        (service,),
    ).fetchone()
    for (statement,) in database.execute(
        "SELECT statement FROM schema_migrations ORDER BY version DESC"
    ):
        if slow and (dropped := DROPPED.search(statement)):
            return Fact("missing_index", dropped[1])
    return Fact("normal")


def _changes(database: sqlite3.Connection, service: str) -> Fact:
    row = database.execute(
        "SELECT kind, what FROM (SELECT time, 'deploy' AS kind, release AS what FROM deployments WHERE service = :s "
        "UNION ALL SELECT time, 'flag', flag FROM flag_changes WHERE flag LIKE :s || '.%'), "
        "(SELECT min(time) AS began FROM edge_requests) WHERE time >= began ORDER BY time DESC",
        {"s": service},
    ).fetchone()
    return Fact(*row) if row is not None else Fact("none")


def _queue(database: sqlite3.Connection, service: str) -> Fact:
    del service  # There is one queue.
    if database.execute("SELECT 1 FROM cache_info WHERE field = 'error'").fetchone():
        return Fact("unreachable")
    (waiting,) = database.execute("SELECT sum(size) FROM cache_keys WHERE type = 'list'").fetchone()
    if (waiting or 0) < BACKLOG:
        return Fact("moving")
    (message,) = database.execute(
        "SELECT message FROM queue_messages WHERE position = 0 ORDER BY queue LIKE '%:taken' DESC"
    ).fetchone()
    identifier = re.search(r'"id": "([^"]+)"', message)
    return Fact("blocked", identifier[1] if identifier else "none")


def _containers(database: sqlite3.Connection, service: str) -> Fact:
    pod, reason, last, restarts = database.execute(
        "SELECT container, reason, last_reason, restarts FROM containers WHERE service = ? "
        "AND state <> 'Terminated' ORDER BY rowid DESC",
        (service,),
    ).fetchone()
    if reason == "Evicted":
        return Fact("evicted", pod)
    if restarts:
        return Fact("oom_killed" if last == "OOMKilled" else "crash_loop", pod)
    row = database.execute(
        "SELECT serial FROM certificates WHERE mounted_by = ? AND not_after < (SELECT max(time) FROM edge_requests)",
        (service,),
    ).fetchone()
    return Fact("certificate_expired", row[0]) if row is not None else Fact("running")
