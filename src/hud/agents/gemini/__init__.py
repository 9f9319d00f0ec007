"""`GeminiAgent`: the tool loop over Gemini's generateContent; `GeminiCUAAgent` with Gemini's own computer.

agent.py     the agents and their settings
model.py     one turn asked of the API, streamed or whole
tools.py     how tools are declared, and whose call a function call is
requests.py  a conversation as the API reads it
answers.py   what an answer says
actions.py   the computer's actions
"""

from hud.agents.gemini.agent import GeminiAgent, GeminiCUAAgent
from hud.agents.gemini.model import GeminiModel

__all__ = ["GeminiAgent", "GeminiCUAAgent", "GeminiModel"]
