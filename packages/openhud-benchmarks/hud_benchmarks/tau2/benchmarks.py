"""The benchmarks `tau2/airline`, `tau2/retail` and `tau2/telecom`, and their splits. Reading this loads no package."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hud.benchmarks.benchmark import SPLITS, Benchmark, Family, Package, Split

if TYPE_CHECKING:
    from hud.agents import Agent
    from hud.environment import Task

PACKAGE = Package(
    "inspect-evals",
    "0.26.0",
    "MIT",
    bare=True,  # Its data are read, and none of its Python, which needs inspect-ai.
)

Domain = Literal["airline", "retail", "telecom"]
SUMMARIES: dict[Domain, str] = {
    "airline": "a customer's flights and bookings, in conversation",
    "retail": "a customer's orders, in conversation",
    "telecom": "tickets about a phone, its line and its bills, alone",
}
SIZES: dict[Domain, dict[Split, int]] = {
    "airline": {"train": 17, "held-out": 14},
    "retail": {"train": 69, "held-out": 38},
    "telecom": {"train": 74, "held-out": 40},
}
NAMES: dict[Split, str] = {"train": "train", "held-out": "test"}
"""Names of the splits in the package."""
MOST_STEPS = 100
"""Model calls in one run."""
ANY_CALLS = (
    "calling every tool mends some phones, and the package looks at nothing else that was changed"
)
"""Reason why tasks of `service_issue` declare such exploits to be none of theirs."""

LEFT_OUT: dict[Domain, frozenset[str]] = {
    "airline": frozenset(
        [
            "0",
            "1",
            "4",
            "5",
            "6",
            "10",
            "13",
            "26",
            "28",
            "31",
            "34",
            "36",
            "41",
            "43",
            "45",
            "46",
            "47",
            "48",
            "49",
        ]
    ),
    "retail": frozenset(["10", "12", "25", "50", "57", "65", "105"]),
    "telecom": frozenset(),
}
"""Tasks of the package that doing nothing solves: their solution changes no record, and the customer is told nothing
that is looked for."""


def family() -> Family:
    """Return a benchmark for each domain."""
    return Family(
        [
            Benchmark(
                name=f"tau2/{domain}",
                summary=summary,
                package=PACKAGE,
                sizes={split: SIZES[domain][split] for split in SPLITS},
                make_tasks=functools.partial(_tasks, domain),
                make_oracle=_oracle,
                needs=""
                if domain == "telecom"
                else "a model that plays the customer: HUD_USER_MODEL",
            )
            for domain, summary in SUMMARIES.items()
        ],
        baseline=Path(__file__).with_name("baseline.json"),
    )


def _tasks(domain: Domain, split: Split) -> list[Task]:
    from hud_benchmarks.tau2.data import split_ids
    from hud_benchmarks.tau2.environment import case

    tasks = []
    for identifier in split_ids(domain, NAMES[split]):
        if identifier in LEFT_OUT[domain]:
            continue
        task = case(domain=domain, identifier=identifier)
        task.slug = f"{domain}-{_plain(identifier)}"
        task.agent_config = {"max_steps": MOST_STEPS}
        task.columns = {"domain": domain}
        if identifier.startswith("[service_issue]"):
            task.columns |= {"audit:calls": ANY_CALLS, "audit:reach": ANY_CALLS}
        tasks.append(task)
    return tasks


def _plain(identifier: str) -> str:
    """Return an id without what a shell reads: `[service_issue]lock_sim_card_pin[PERSONA:Easy]` has brackets."""
    issue = identifier.replace("PERSONA:", "").replace("|", "+")
    return issue.replace("[", "-").replace("]", "-").strip("-")


def _oracle() -> Agent:
    from hud_benchmarks.tau2.oracle import oracle

    return oracle
