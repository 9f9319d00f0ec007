"""Two environments of one file: a librarian whose run calls a reader's, for the tests of subagents."""

import asyncio
from typing import Annotated

from hud.environment import AgentTool, Environment, GradingArg

SHELF = {"dune": "sand", "emma": "match", "ulysses": "dublin"}

reader = Environment("reader", version="3.0")
library = Environment("library")


@reader.initialize
async def sit_down():
    reader.state.read = []


@reader.shutdown
async def stand_up():
    library.state.left = getattr(library.state, "left", 0) + 1


@reader.tool
async def turn_page(title: str) -> str:
    """Read a page; it lies in the caller's library."""
    reader.state.read.append(title)
    library.state.pages += 1
    return f"{library.state.books.get(title, 'nothing')} ({len(reader.state.read)})"


@reader.tool
async def doze(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "awake"


@reader.template(description="Read a book and say what it is about.")
async def read(
    title: str,
    depth: int = 1,
    subject: str | None = None,
    strict: Annotated[bool, GradingArg] = False,
    fault: str | None = None,
):
    """Read.

    Args:
        title: Which book.
    """
    if fault == "setup":
        raise OSError("the lamp is out")
    answer = yield f"What is {title} about?"
    if fault == "grade":
        raise ValueError("the critic is ill")
    yield float(answer == subject if strict else subject in answer)


@library.initialize
async def open_doors():
    library.state.books = dict(SHELF)
    library.state.pages = 0


reading = library.add_tool(
    AgentTool(read, model="bookworm", name="ask_reader", from_task={"subject": "expected"})
)


@library.tool
async def count_pages() -> str:
    return f"{library.state.pages} pages, {getattr(library.state, 'left', 0)} readers left"


@library.template()
async def enquire(
    title: str = "dune", expected: str = "sand", trouble: str = "", strict: bool = True
):
    if trouble:
        reading.supply(fault=trouble)
    answer = yield f"Find out what {title} is about."
    nested = [step for step in answer.trace.steps if step.source == "subagent"]
    rewards = [step.extra["reward"] for step in nested]
    seen = [inner.source for step in nested for inner in step.subagent.steps]
    yield {"score": float(expected in answer), "info": {"rewards": rewards, "seen": seen}}


reader.add_tool(AgentTool(read, name="ask_another"))
"""A reader may ask another reader, and so on: recursion, which is bounded."""
