"""pydantic-ai: `pydantic_agent.py MODEL`."""

import sys

from pydantic_ai import Agent
from task_tools import TASK, TOOLS

print(Agent(sys.argv[1], tools=TOOLS).run_sync(TASK).output)
