"""The tools of an environment: the lab's four MCP servers over a recording, or a team's real ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hud import Environment
from hud.errors import EnvironmentFault, UsageError
from hud_benchmarks.incident_lab.desk import platform, tracker
from hud_benchmarks.incident_lab.desk.servers import EXECUTE_SQL, OPEN, TOOLS, server
from hud_benchmarks.incident_lab.incidents import REAL_SERVERS, Incident

Names = tuple[str, ...]


def _names(queries: Sequence[Any]) -> Names:
    return tuple(query.name for query in queries)


AREAS: dict[str, dict[str, Names]] = {
    "errors": {"tracker": _names(tracker.ISSUES)},
    "metrics": {"tracker": _names(tracker.PERFORMANCE)},
    "database": {"database": (*_names(TOOLS["database"]), EXECUTE_SQL)},
    "changes": {"deploy": _names(platform.CHANGES)},
    "queue": {"deploy": _names(platform.QUEUE)},
    "containers": {"cluster": _names(TOOLS["cluster"])},
}
"""Tools of each specialist, by server."""


class Desk:
    """An environment's connection to the servers: all tools, those of one specialist's area, or those that are named."""

    def __init__(
        self,
        env: Environment,
        area: str | None = None,
        *,
        tools: Mapping[str, Names] | None = None,
    ) -> None:
        """`tools`: names by server of the lab; None: those of the area. Servers of one's own have theirs in their file."""
        self.env = env
        self.parts: list[Any] = []
        chosen = tools if tools is not None or area is None else AREAS[area]
        if REAL_SERVERS:
            self._connect_real(area)
            return
        for name in chosen or TOOLS:
            self.parts.append(
                env.connect_mcp(
                    partial(server, name),
                    name=name,
                    prefix=name,
                    include=None if chosen is None else chosen[name],
                    exclude=(OPEN,),
                )
            )

    async def open(self, incident: Incident) -> None:
        """Have the servers of this run answer from an incident's recording; real ones answer as they are.

        Raises `EnvironmentFault` where a server cannot read it.
        """
        for part in self.parts:
            reply = await self.env.opened(part).call(OPEN, {"file": str(incident.file)})
            if reply.is_error:  # Nobody can be judged by tools that know nothing.
                raise EnvironmentFault(f"Incident {incident.name!r}: {reply.text}")

    def _connect_real(self, area: str | None) -> None:
        """Connect what the team's file names; its `areas` say which servers' tools a specialist has."""
        try:
            config = json.loads(Path(str(REAL_SERVERS)).read_text())
        except (OSError, ValueError) as error:
            raise UsageError(
                f"INCIDENT_LAB_MCP names {REAL_SERVERS}, which is no JSON file: {error}"
            ) from error
        servers = config["mcpServers"]
        chosen = config.get("areas", {}).get(area) if area is not None else None
        if area is not None and chosen is None:
            raise UsageError(f'{REAL_SERVERS} has no servers for the area {area!r} under "areas".')
        wanted = servers if chosen is None else {name: servers[name] for name in chosen}
        self.env.connect_mcp_config({"mcpServers": wanted}, prefix=True, include=chosen)
