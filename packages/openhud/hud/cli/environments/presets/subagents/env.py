"""TITLE: a lead whose tool is another agent, with tools, a grader and a trace of its own.

Try it:   hud eval FOLDER/tasks.py FOLDER/agent.py --all
"""

from hud import Environment
from hud.environment import AgentTool

library = Environment("NAME-library")
env = Environment("NAME")
BOOKS = {"Dune": "sand", "Emma": "matches", "Dracula": "blood", "Walden": "pond"}


@library.tool
async def open_book(title: str) -> str:
    """Read a book."""
    return BOOKS.get(title, "no such book")


@library.template(id="read", description="Find out what a book is about.")
async def read(title: str, subject: str | None = None):
    answer = yield f"What is the book {title} about? Answer with one word."
    yield float(answer.strip() == subject)


# The reader is graded by what only the lead's task knows: `subject` is its argument `about`.
env.add_tool(AgentTool(read, name="ask_reader", from_task={"subject": "about"}))


@env.template(id="sort", description="Sort a book by its subject.")
async def sort(title: str, about: str):
    answer = yield f"On which shelf belongs the book {title}: {', '.join(BOOKS.values())}?"
    yield float(answer.strip() == about)
