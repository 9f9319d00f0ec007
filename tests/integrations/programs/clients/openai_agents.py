"""OpenAI's Agents SDK: `openai_agents.py chat|responses`."""

import sys

from task_tools import TASK, TOOLS

from agents import Agent, Runner, function_tool, set_default_openai_api

if sys.argv[1] == "chat":
    set_default_openai_api("chat_completions")
agent = Agent(name="coder", model="scripted", tools=[function_tool(tool) for tool in TOOLS])
print(Runner.run_sync(agent, TASK).final_output)
