"""LangGraph's agent with LangChain's models: `langgraph_agent.py chat|responses|messages`."""

import sys

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from task_tools import TASK, TOOLS

models = {
    "chat": lambda: ChatOpenAI(model="scripted"),
    "responses": lambda: ChatOpenAI(model="scripted", use_responses_api=True, streaming=True),
    "messages": lambda: ChatAnthropic(
        model="scripted", thinking={"type": "enabled", "budget_tokens": 1024}
    ),
}
agent = create_agent(models[sys.argv[1]](), TOOLS)
answer = agent.invoke({"messages": [{"role": "user", "content": TASK}]})
print(answer["messages"][-1].text)
