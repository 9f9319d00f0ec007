"""Environment `sheetbench`: a workbook of the run's own, and the tools of a spreadsheet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from hud.environment import Environment
from hud.graders import EvaluationResult
from hud_benchmarks.sheetbench.grading.exercise import SCRATCH
from hud_benchmarks.sheetbench.grading.grade import grade
from hud_benchmarks.sheetbench.kinds import exercise
from hud_benchmarks.sheetbench.tools import tools
from hud_benchmarks.sheetbench.workbook.book import Book
from hud_benchmarks.sheetbench.workbook.part import BookPart

INSTRUCTION = (
    "The workbook is open; work on it with the tools. Only the workbook that you leave counts, not what you answer. Write the "
    "cells that are asked for, and no others: anything else that was changed or added costs the whole reward. Dates are "
    f"dates, numbers are numbers, not texts. A sheet named {SCRATCH}, if you add one, is yours and is not looked at."
)

LONGEST_CONTENT = 500
_UNREADABLE = (ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""Errors of a workbook's contents: the agent's, whose workbook it is."""

env = Environment("sheetbench")
workbook = env.add(BookPart())
for function in tools(workbook):
    env.tool(function)


@env.template()
async def book(kind: str, seed: int) -> AsyncGenerator[Any, Any]:
    """Do what is asked for in a workbook."""
    workbook.opened.book = Book(exercise(kind, seed).workbook)
    yield f"{exercise(kind, seed).request}\n\n{INSTRUCTION}"
    left = workbook.book.workbook
    try:
        yield await asyncio.to_thread(grade, exercise(kind, seed), left)
    except _UNREADABLE as error:
        problem = f"The workbook that is left cannot be graded: {type(error).__name__}: {error}"
        yield EvaluationResult(reward=0.0, content=problem[:LONGEST_CONTENT])
