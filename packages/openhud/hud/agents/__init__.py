"""Agents, which play runs. `create_agent(model)` returns one; `Agent` is their base class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.agents.agent import Agent, RunView
from hud.lazy import lazy

if TYPE_CHECKING:
    from hud.agents.catalogue import create_agent
    from hud.agents.human import HumanAgent
    from hud.agents.providers.claude import ClaudeAgent
    from hud.agents.providers.gemini import GeminiAgent, GeminiCUAAgent
    from hud.agents.providers.openai_chat import OpenAIChatAgent
    from hud.agents.providers.openai_responses import OpenAIAgent, OperatorAgent
    from hud.agents.scripted import ScriptedAgent
    from hud.agents.tool_loop import ToolLoopAgent

# Imported at first use: the HTTP library takes most of the import time.
_HOMES = {
    "ClaudeAgent": ".providers.claude",
    "GeminiAgent": ".providers.gemini",
    "GeminiCUAAgent": ".providers.gemini",
    "HumanAgent": ".human",
    "OpenAIAgent": ".providers.openai_responses",
    "OpenAIChatAgent": ".providers.openai_chat",
    "OperatorAgent": ".providers.openai_responses",
    "ScriptedAgent": ".scripted",
    "ToolLoopAgent": ".tool_loop",
    "create_agent": ".catalogue",
}

__all__ = [
    "Agent",
    "ClaudeAgent",
    "GeminiAgent",
    "GeminiCUAAgent",
    "HumanAgent",
    "OpenAIAgent",
    "OpenAIChatAgent",
    "OperatorAgent",
    "RunView",
    "ScriptedAgent",
    "ToolLoopAgent",
    "create_agent",
]

__getattr__ = lazy(__name__, _HOMES)
