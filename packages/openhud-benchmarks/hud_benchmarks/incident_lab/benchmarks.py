"""The benchmarks `incident-lab/flat` and `incident-lab/team`: one model alone, and a lead with six specialists.

Reading this loads neither the recordings nor the servers.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hud.benchmarks.benchmark import OPENHUD, SPLITS, Benchmark, Family, Reference, Split
from hud.errors import UsageError

if TYPE_CHECKING:
    from hud.agents import Agent
    from hud.environment import Task

Way = Literal["flat", "team"]
SUMMARIES: dict[Way, str] = {
    "flat": "one model with 109 tools finds the fault behind an alert",
    "team": "a lead with six specialists finds the fault behind an alert",
}
HELD_OUT = frozenset(
    [
        "certificate-bank",
        "dead-cache",
        "deploy-catalog",
        "flag-orders",
        "index-shipments",
        "leak-storefront",
        "poison-order",
        "pool-payments",
    ]
)
"""One of the three recorded incidents of each cause; the other two are training tasks."""
SIZES: dict[Split, int] = {"train": 16, "held-out": 8}
NOVICE = 0.1
"""Declared standing of the novices, scripts that blame the newest change."""


def family() -> Family:
    """Return the two benchmarks; they have the same incidents, prompt, answer and step cap."""
    return Family(
        [
            Benchmark(
                name=f"incident-lab/{way}",
                summary=summary,
                package=OPENHUD,
                sizes={split: SIZES[split] for split in SPLITS},
                make_tasks=functools.partial(_tasks, way),
                make_oracle=functools.partial(_oracle, way),
                needs="the MCP SDK: pip install openhud[environments]",
                novices={"novice": Reference(functools.partial(_novice, way), NOVICE)},
            )
            for way, summary in SUMMARIES.items()
        ],
        baseline=Path(__file__).with_name("baseline.json"),
    )


def _tasks(way: Way, split: Split) -> list[Task]:
    from hud_benchmarks.incident_lab import flat, hierarchical
    from hud_benchmarks.incident_lab.incidents import FOLDER, REAL_SERVERS, RECORDED, incidents

    if FOLDER != RECORDED or REAL_SERVERS:
        raise UsageError(
            f"Benchmark 'incident-lab/{way}' has the recordings and servers that it ships. Unset INCIDENT_LAB and "
            "INCIDENT_LAB_MCP, or play a task file with incidents of your own (docs/incident-lab.md)."
        )
    make = {"flat": flat.task, "team": hierarchical.task}[way]
    tasks = []
    for name, incident in incidents().items():
        if (name in HELD_OUT) == (split == "held-out"):
            task = make(name)
            task.slug = f"{way}-{name}"
            task.columns = {"cause": incident.finding.cause, "service": incident.finding.service}
            tasks.append(task)
    return tasks


def _oracle(way: Way) -> Agent:
    from hud_benchmarks.incident_lab import players

    return {"flat": players.oracle, "team": players.team}[way]


def _novice(way: Way) -> Agent:
    from hud_benchmarks.incident_lab import players

    return {"flat": players.novice, "team": players.novice_team}[way]
