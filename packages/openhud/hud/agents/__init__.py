"""Agents, which play runs. `create_agent(model)` returns one; `Agent` is their base class.

Agents that packages register by entry points of the group `hud.agents`, such as those of providers, have their names here.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from hud.agents.agent import Agent, RunView
from hud.lazy import lazy
from hud.plugs import load, plugs

if TYPE_CHECKING:
    from hud.agents.catalogue import create_agent
    from hud.agents.human import HumanAgent
    from hud.agents.programs.http_agent import HttpAgent
    from hud.agents.programs.program_agent import ProgramAgent
    from hud.agents.providers.openai_chat import OpenAIChatAgent
    from hud.agents.scripted import ScriptedAgent
    from hud.agents.tool_loop import ToolLoopAgent

# Imported at first use: the HTTP library takes most of the import time.
_HOMES = {
    "HttpAgent": ".programs.http_agent",
    "HumanAgent": ".human",
    "OpenAIChatAgent": ".providers.openai_chat",
    "ProgramAgent": ".programs.program_agent",
    "ScriptedAgent": ".scripted",
    "ToolLoopAgent": ".tool_loop",
    "create_agent": ".catalogue",
}

__all__ = [
    "Agent",
    "HttpAgent",
    "HumanAgent",
    "OpenAIChatAgent",
    "ProgramAgent",
    "RunView",
    "ScriptedAgent",
    "ToolLoopAgent",
    "create_agent",
]

_own = lazy(__name__, _HOMES)
_registered = functools.cache(functools.partial(plugs, "hud.agents"))


def __getattr__(name: str) -> Any:
    # Names of modules are looked up here, too, before they are imported.
    point = _registered().get(name) if name[:1].isupper() and name not in _HOMES else None
    return _own(name) if point is None else load(point, type)
