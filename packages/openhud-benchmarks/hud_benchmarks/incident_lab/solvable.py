"""An incident is kept only if it can be solved from what the tools show: the oracle tries, without any server."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

from hud_benchmarks.incident_lab import players
from hud_benchmarks.incident_lab.desk.servers import TOOLS, Desk
from hud_benchmarks.incident_lab.lab.facts import Fact
from hud_benchmarks.incident_lab.lab.finding import Finding, parse_finding


def problem(
    file: Path, page: str, finding: Finding, facts: dict[str, dict[str, Fact]]
) -> str | None:
    """Return in a sentence why an incident is no task, if it is none."""
    desks = {name: Desk(name, file) for name in TOOLS}
    solution = parse_finding(_played(desks, players.alone(f"ALERT {page}")))
    if solution != finding:
        return f"the oracle finds {solution}, not {finding}"
    since = page.split()[1]
    for area, look in players.LOOKS.items():
        for service, fact in facts[area].items():
            report = _played(desks, look(service, since))
            if report != (fact.sign, fact.detail):
                return f"{area} of {service}: the oracle reports {report}, not {fact}"
    return None


def _played(desks: dict[str, Desk], investigation: Generator[Any, str, Any]) -> Any:
    try:
        tool, arguments = next(investigation)
        while True:
            server, _, name = tool.partition("_")
            tool, arguments = investigation.send(desks[server].call(name, arguments))
    except StopIteration as end:
        return end.value
