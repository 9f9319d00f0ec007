"""Recorded incidents: their pages, findings and facts, by name.

`INCIDENT_LAB` names another folder of recordings, as `record` makes them. `INCIDENT_LAB_MCP` names an `mcpServers` JSON
to use in place of the lab's own servers: then the folder needs only `findings.json`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hud import settings
from hud.errors import UsageError
from hud_benchmarks.incident_lab.lab.facts import Fact
from hud_benchmarks.incident_lab.lab.finding import Finding

RECORDED = Path(__file__).parent / "incidents"
_VARIABLES = settings.load().environment
FOLDER = Path(_VARIABLES.get("INCIDENT_LAB") or RECORDED).resolve()
REAL_SERVERS = _VARIABLES.get("INCIDENT_LAB_MCP")


@dataclass(frozen=True)
class Incident:
    """One incident, as its grader knows it."""

    name: str
    page: str
    finding: Finding
    facts: dict[str, dict[str, Fact]]
    """By area and service."""

    @property
    def file(self) -> Path:
        """The recording."""
        return FOLDER / f"{self.name}.sqlite.gz"


@cache
def incidents() -> dict[str, Incident]:
    """Return the incidents of the folder by name. Raises `UsageError` where there are none."""
    file = FOLDER / "findings.json"
    if not file.exists():
        raise UsageError(f"There are no incidents in {FOLDER}; `make lab` records some.")
    return {
        name: Incident(
            name,
            entry["page"],
            Finding(entry["service"], entry["cause"], entry["culprit"]),
            {
                area: {service: Fact(*fact) for service, fact in by_service.items()}
                for area, by_service in entry.get("facts", {}).items()
            },
        )
        for name, entry in json.loads(file.read_text()).items()
    }
