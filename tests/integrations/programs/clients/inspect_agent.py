"""Inspect's agent: `inspect_agent.py MODEL`."""

import sys

from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.tool import Tool, tool
from task_tools import TASK, TOOLS


def inspected(function) -> Tool:
    @tool(name=function.__name__)
    def made():
        async def execute(**arguments):
            return function(**arguments)

        execute.__signature__ = __import__("inspect").signature(function)
        execute.__annotations__ = function.__annotations__
        execute.__doc__ = function.__doc__
        return execute

    return made()


task = Task(dataset=[Sample(TASK)], solver=react(tools=[inspected(tool) for tool in TOOLS]))
(log,) = eval(task, model=sys.argv[1], display="none", log_dir="logs")
print(log.status, log.samples[0].output.completion)
