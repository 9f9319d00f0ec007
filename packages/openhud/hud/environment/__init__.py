"""Environments: tools, templates, and the state of a run.

env = Environment("letters")

@env.template()
async def count(word: str):
    answer = yield f"How many letters has {word!r}?"
    yield 1.0 if answer == str(len(word)) else 0.0
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hud.capabilities import Capability
from hud.environment.connection import Connection, ToolOutcome
from hud.environment.environment import Environment
from hud.environment.part import OpenPart, Part, RunTool
from hud.environment.run import EnvironmentRun
from hud.environment.sources.loader import load_environment
from hud.environment.templates.agent_tool import AgentTool, Delegation
from hud.environment.templates.answer import Answer
from hud.environment.templates.prompts import StartFrame
from hud.environment.templates.task import Task
from hud.environment.templates.template import Template
from hud.environment.tools.arguments import GradingArg
from hud.environment.tools.results import Image
from hud.environment.workspace import Mount, Peer, WorkspaceLimits
from hud.lazy import lazy

if TYPE_CHECKING:
    from hud.environment.channel import bind, serve
    from hud.environment.workspace import Workspace

    Taskset: Any
    play_here: Any

__all__ = [
    "AgentTool",
    "Answer",
    "Capability",
    "Connection",
    "Delegation",
    "Environment",
    "EnvironmentRun",
    "GradingArg",
    "Image",
    "Mount",
    "OpenPart",
    "Part",
    "Peer",
    "RunTool",
    "StartFrame",
    "Task",
    "Template",
    "ToolOutcome",
    "Workspace",
    "WorkspaceLimits",
    "bind",
    "load_environment",
    "serve",
]

__getattr__ = lazy(
    __name__,
    {
        "Workspace": ".workspace",
        "bind": ".channel",
        "serve": ".channel",
        # For `Task.run` and subagent tools. Evaluation depends on environments, so it is imported at first use only.
        "Taskset": "hud.eval.tasksets.taskset",
        "play_here": "hud.eval.subagents",
    },
)
