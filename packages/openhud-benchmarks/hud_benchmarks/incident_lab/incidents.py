"""The recorded incidents: where they are, what the page said, and what there is to be found.

`INCIDENT_LAB` names another folder of recordings, as `record.py` makes them. `INCIDENT_LAB_MCP` names an
`mcpServers` JSON to use in place of the lab's own servers: then the folder needs only `findings.json`.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lab.facts import Fact
from lab.finding import Finding

RECORDED = Path(__file__).parent / "incidents"
FOLDER = Path(os.environ.get("INCIDENT_LAB") or RECORDED).resolve()
REAL_SERVERS = os.environ.get("INCIDENT_LAB_MCP")


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
    """Return the incidents of the folder by name."""
    file = FOLDER / "findings.json"
    if not file.exists():
        raise SystemExit(f"Error: there are no incidents in {FOLDER}; `make lab` records some.")
    return {
        name: Incident(
            name,
            told["page"],
            Finding(told["service"], told["cause"], told["culprit"]),
            {
                area: {service: Fact(*fact) for service, fact in by_service.items()}
                for area, by_service in told.get("facts", {}).items()
            },
        )
        for name, told in json.loads(file.read_text()).items()
    }
