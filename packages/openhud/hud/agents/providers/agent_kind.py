"""Port of agent types: what `hud eval TASKS NAME` plays, and which models' names choose it.

A package registers an `AgentKind` by an entry point of the group `hud.agent_kinds`, and its class, under the name with which
`hud.agents` has it, by one of the group `hud.agents`. The class is imported when an agent is created.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hud.plugs import load_all

if TYPE_CHECKING:
    from hud.agents.types import AgentConfig

GROUP = "hud.agent_kinds"


@dataclass(frozen=True)
class AgentKind:
    """An agent type: its class in `hud.agents`, and its configuration class, which `hud.agents.types` has."""

    name: str
    agent: str
    settings: type[AgentConfig]
    models: str | None = None
    """Pattern with which the names of its models begin; of several that match, the longest match counts."""
    max_tokens: str = "max_output_tokens"
    """The type's name of the setting `max_tokens`; a dot nests."""
    temperature: str | None = "temperature"
    """Its name of the setting `temperature`; None: it has none."""
    top_p: str | None = None
    """Its name of the setting `top_p`; None: it has none."""
    narrows: str | None = None
    """Type in whose place it plays the models of its pattern, also where a platform names that type."""
    program: bool = False
    """True for a program, or a server, that plays a run by itself and asks its model over HTTP."""


def model_kinds() -> dict[str, AgentKind]:
    """Return the agent types with the tool loop."""
    return {name: kind for name, kind in agent_kinds().items() if not kind.program}


@functools.cache
def agent_kinds() -> dict[str, AgentKind]:
    """Return the registered agent types by their names, imported once for each process."""
    return {kind.name: kind for kind in load_all(GROUP, AgentKind).values()}
