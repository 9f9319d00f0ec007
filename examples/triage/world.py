"""The world of an incident: a fault model that fills a SQLite database from a seed.

It knows services, faults and how a fault spreads; it knows nothing of agents, tools or rewards. The same
`(seed, held_out)` always gives the same incident. Held-out incidents share no service name and no wording
with training incidents: names are built from the same parts, in combinations that training never shows.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import cache, lru_cache

CAUSES = ("certificate", "deploy", "flag", "index", "leak", "outage", "pool")
"""An expired certificate, a bad deploy, a bad feature flag, a missing index, a memory leak, the outage of a
dependency, an exhausted connection pool."""

ERROR_CLASSES: dict[str, tuple[str, ...]] = {
    "deploy": ("KeyError", "TypeError"),
    "flag": ("KeyError", "TypeError"),
    "pool": ("TimeoutError",),
    "outage": ("ConnectionError",),
    "certificate": ("ConnectionError",),
    "leak": ("TimeoutError",),
    "index": ("TimeoutError",),
}
"""What the faulty service raises. No class tells the cause by itself."""

DOMAINS = (
    "banner", "cart", "catalog", "checkout", "coupon", "courier", "identity", "inventory", "invoice",
    "ledger", "parcel", "pricing", "profile", "refund", "review", "search", "session", "shipping",
    "ticket", "wallet",
)  # fmt: skip
ROLES = (
    "broker",
    "cache",
    "gateway",
    "planner",
    "proxy",
    "queue",
    "relay",
    "router",
    "store",
    "worker",
)
HELD_OUT_SHARE = 5
"""One in this many combinations of domain and role occurs in held-out incidents only."""

OPENERS = (
    "Customers report that", "Support says that", "A partner complains that", "Users write that",
    "The dashboard shows that", "An alert says that", "Since today", "It seems that",
)  # fmt: skip
TROUBLES = (
    "is slow", "fails", "answers with errors", "hangs", "drops requests", "times out", "is broken",
    "does not load",
)  # fmt: skip
TAILS = ("", " again", " for many users", " in one region", " all the time")
"""A page is an opener, the domain that hurts, a trouble and a tail; see `wordings`."""

SERVICES = 6
"""Services of an incident's world, each of its own domain."""
WINDOW = 60
"""Minutes of metrics before now."""
STEP = 10
"""Minutes between two samples of a metric."""

SCHEMA = """
CREATE TABLE services (name TEXT PRIMARY KEY, domain TEXT, role TEXT);
CREATE TABLE dependencies (service TEXT, upstream TEXT, status TEXT);
CREATE TABLE issues (service TEXT, class TEXT, events INTEGER, since INTEGER);
CREATE TABLE events (service TEXT, minute INTEGER, class TEXT, frame TEXT, upstream TEXT);
CREATE TABLE metrics (service TEXT, metric TEXT, minute INTEGER, value REAL);
CREATE TABLE deploys (service TEXT, version INTEGER, minute INTEGER);
CREATE TABLE flags (service TEXT, flag TEXT, minute INTEGER);
CREATE TABLE certificates (service TEXT, expires_minute INTEGER);
"""
"""Minutes count from now, which is 0: the past is negative."""

DAY = 24 * 60


@dataclass(frozen=True)
class Incident:
    """The truth about one incident; the agent sees only `page` and what the database says."""

    seed: int
    held_out: bool
    page: str
    """What the person who pages the agent says: it names the domain that hurts, never a service."""
    services: tuple[str, ...]
    chain: tuple[str, ...]
    """From the service that shows the symptom, along failing calls, to the service at fault."""
    bystander: str
    """Another service with an open issue that has nothing to do with the incident."""
    cause: str
    error_class: str
    onset: int
    """Minute at which the fault began; negative."""

    @property
    def symptom(self) -> str:
        """The service where users feel it."""
        return self.chain[0]

    @property
    def culprit(self) -> str:
        """The service at fault."""
        return self.chain[-1]

    @property
    def par(self) -> int:
        """Tool calls of the shortest sound investigation: issues, one trace for each link, one probe."""
        return len(self.chain) + 2


@cache
def wordings(held_out: bool) -> list[str]:
    """Return the sentences that training (or the held-out set) may page with; `{domain}` stands in each."""
    return [
        f"{opener} {{domain}}-* {trouble}{tail}."
        for i, opener in enumerate(OPENERS)
        for j, trouble in enumerate(TROUBLES)
        for k, tail in enumerate(TAILS)
        if ((i + j + k) % HELD_OUT_SHARE == 0) == held_out
    ]


@cache
def names(held_out: bool) -> dict[str, list[str]]:
    """Return, for each domain, the service names that training (or the held-out set) may use."""
    pool: dict[str, list[str]] = {domain: [] for domain in DOMAINS}
    for i, domain in enumerate(DOMAINS):
        for j, role in enumerate(ROLES):
            if ((i + 2 * j) % HELD_OUT_SHARE == 0) == held_out:
                pool[domain].append(f"{domain}-{role}")
    return pool


def incident(seed: int, held_out: bool = False) -> Incident:
    """Return the incident of a seed."""
    rng = random.Random(f"incident {seed} {held_out}")
    pool = names(held_out)
    services = [rng.choice(pool[domain]) for domain in rng.sample(DOMAINS, SERVICES)]
    length = rng.choice((2, 2, 3))
    # Causes go round, so that each split holds as many of one as of another.
    cause = CAUSES[seed % len(CAUSES)]
    chain = services[:length]
    wording = rng.choice(wordings(held_out))
    shuffled = rng.sample(services, len(services))
    return Incident(
        seed=seed,
        held_out=held_out,
        page=wording.format(domain=chain[0].partition("-")[0]),
        services=tuple(shuffled),
        chain=tuple(chain),
        bystander=services[length],
        cause=cause,
        error_class=rng.choice(ERROR_CLASSES[cause]),
        onset=-rng.randint(2, 3) * STEP,
    )


def build(case: Incident) -> sqlite3.Connection:
    """Return a fresh in-memory database of the incident's world."""
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.deserialize(_image(case))
    return database


@lru_cache(maxsize=256)
def _image(case: Incident) -> bytes:
    """Return the database's bytes: runs of one incident begin with the same."""
    rng = random.Random(f"world {case.seed} {case.held_out}")
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(SCHEMA)
        rows: dict[str, list[tuple[object, ...]]] = {
            "services": [(name, *name.split("-")) for name in case.services],
            "dependencies": _dependencies(case, rng),
            "issues": _issues(case, rng),
            "events": _events(case, rng),
            "metrics": [row for name in case.services for row in _metrics(case, name, rng)],
            "deploys": _deploys(case, rng),
            "flags": _flags(case, rng),
            "certificates": _certificates(case, rng),
        }
        for table, values in rows.items():
            marks = ", ".join("?" * len(values[0]))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        database.commit()
        return database.serialize()


def _dependencies(case: Incident, rng: random.Random) -> list[tuple[object, ...]]:
    """Calls between services: the failing chain, a harmless one, and the outside party of the culprit."""
    links = list(zip(case.chain, case.chain[1:], strict=False))
    rest = [name for name in case.services if name not in case.chain]
    links.append((case.symptom, rng.choice(rest)))
    links.append((rest[0], rest[1]))
    rows: list[tuple[object, ...]] = [(service, upstream, "up") for service, upstream in links]
    status = "down" if case.cause == "outage" else "up"
    rows.append((case.culprit, "vendor", status))
    return rows


def _issues(case: Incident, rng: random.Random) -> list[tuple[object, ...]]:
    issues: list[tuple[object, ...]] = [
        (case.symptom, "UpstreamError", rng.randint(200, 900), case.onset),
        (
            case.bystander,
            rng.choice(("KeyError", "TimeoutError", "UpstreamError")),
            rng.randint(200, 900),
            case.onset,
        ),
    ]
    rng.shuffle(issues)
    return issues


def _events(case: Incident, rng: random.Random) -> list[tuple[object, ...]]:
    """Error events: each link of the chain blames the next; the culprit raises the real error."""
    rows: list[tuple[object, ...]] = []
    for service, upstream in zip(case.chain, case.chain[1:], strict=False):
        rows.append((service, case.onset + rng.randint(0, 3), "UpstreamError", "call", upstream))
    frame = {"TimeoutError": "query", "ConnectionError": "connect"}.get(case.error_class, "parse")
    rows.append((case.culprit, case.onset, case.error_class, frame, None))
    rows.append((case.bystander, -rng.randint(5, 50), "KeyError", "parse", None))
    return rows


def _metrics(case: Incident, service: str, rng: random.Random) -> list[tuple[object, ...]]:
    """Time series of one service; a fault moves its own metrics and, along the chain, errors and latency."""
    at_fault = case.cause if service == case.culprit else None
    hurt = service in case.chain
    rows: list[tuple[object, ...]] = []
    for minute in range(-WINDOW, 1, STEP):
        since = max(0, minute - case.onset)
        ill = minute >= case.onset
        noise = rng.uniform(0.95, 1.05)
        slow = hurt and ill
        series = {
            "errors": (0.2 + (12.0 if slow else 0.0)) * noise,
            "latency": (80.0 + (900.0 if slow else 0.0)) * noise,
            "pool": 100.0 if ill and at_fault == "pool" else 35.0 * noise,
            "memory": (40.0 + (2.0 * since + 5.0 if ill and at_fault == "leak" else 0.0)) * noise,
            "scans": (50.0 + (4000.0 if ill and at_fault == "index" else 0.0)) * noise,
        }
        rows.extend((service, metric, minute, value) for metric, value in series.items())
    return rows


def _changes(case: Incident, cause: str, decoy: float, rng: random.Random) -> list[tuple[str, int]]:
    """Return when each service last changed: at the onset where that is the cause, or as a red herring
    on a service that is not at fault, else days ago."""
    rows = []
    for service in case.services:
        guilty = service == case.culprit and case.cause == cause
        herring = service != case.culprit and rng.random() < decoy
        minute = case.onset - rng.randint(1, 4) if guilty or herring else -rng.randint(2, 9) * DAY
        rows.append((service, minute))
    return rows


def _deploys(case: Incident, rng: random.Random) -> list[tuple[object, ...]]:
    changes = _changes(case, "deploy", 0.3, rng)
    return [(service, rng.randint(20, 90), minute) for service, minute in changes]


def _flags(case: Incident, rng: random.Random) -> list[tuple[object, ...]]:
    names = ("fast_path", "new_codec", "lazy_load", "dry_run")
    changes = _changes(case, "flag", 0.3, rng)
    return [(service, rng.choice(names), minute) for service, minute in changes]


def _certificates(case: Incident, rng: random.Random) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for service in case.services:
        guilty = service == case.culprit and case.cause == "certificate"
        rows.append((service, case.onset if guilty else rng.randint(20, 90) * DAY))
    return rows
