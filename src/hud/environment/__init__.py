"""Environments: tools, templates, and one run's world.

env = Environment("letters")

@env.template()
async def count(word: str):
    answer = yield f"How many letters has {word!r}?"
    yield 1.0 if answer == str(len(word)) else 0.0
"""

from hud.environment.agent_tool import AgentTool, Delegation
from hud.environment.answer import Answer
from hud.environment.arguments import GradingArg
from hud.environment.connection import Connection, StartFrame, ToolOutcome
from hud.environment.environment import Environment
from hud.environment.loading import load_environment
from hud.environment.parts import OpenPart, Part, RunTool
from hud.environment.results import Image
from hud.environment.run import EnvironmentRun
from hud.environment.task import Task
from hud.environment.template import Template
from hud.environment.workspace import Mount, Peer, WorkspaceLimits

__all__ = [
    "AgentTool",
    "Answer",
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
    "WorkspaceLimits",
    "load_environment",
]
