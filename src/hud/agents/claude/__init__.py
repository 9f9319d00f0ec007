"""`ClaudeAgent`: the tool loop over Anthropic's messages, with Claude's own computer, shell and editor tools.

agent.py     the agent and its settings
model.py     one turn asked of the API, streamed or whole
tools.py     how tools are declared, and whose call a `tool_use` block is
requests.py  a conversation as the API reads it
answers.py   what an answer says
actions.py   the computer tool's actions
"""

from hud.agents.claude.agent import ClaudeAgent
from hud.agents.claude.model import ClaudeModel

__all__ = ["ClaudeAgent", "ClaudeModel"]
