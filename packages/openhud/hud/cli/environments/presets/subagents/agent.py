"""A scripted agent that plays both sides of TITLE: the proof that the tasks can be done.

Models for both:   hud eval FOLDER/tasks.py SLUG --all --subagent ask_reader=ANOTHER_SLUG
"""

import re

from hud.trace import ToolCall


async def agent(run):
    """The lead asks the reader; the reader opens the book."""
    title = re.search(r"the book (\w+)", run.prompt_text)[1]
    name = "ask_reader" if any(tool.name == "ask_reader" for tool in run.tools) else "open_book"
    return (await run.call_tool(ToolCall(id="1", name=name, arguments={"title": title}))).text
