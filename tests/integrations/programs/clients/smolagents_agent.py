"""smolagents' agent with tool calls."""

import os

from smolagents import OpenAIModel, ToolCallingAgent, tool
from task_tools import TASK, TOOLS

model = OpenAIModel(
    "scripted", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"]
)
print(ToolCallingAgent([tool(function) for function in TOOLS], model).run(TASK))
