"""The workbook as a part of an environment: each run has its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from openpyxl import Workbook

from hud.environment.part import OpenPart, Part
from hud.environment.run import EnvironmentRun
from hud_benchmarks.sheetbench.calculation.office import check_programs
from hud_benchmarks.sheetbench.workbook.book import Book


class OpenBook(OpenPart):
    """The workbook of one run."""

    def __init__(self) -> None:
        self.book = Book(Workbook())


class BookPart(Part[OpenBook]):
    """A workbook, empty until a template opens one."""

    name = "workbook"

    @asynccontextmanager
    async def open(self, run: EnvironmentRun) -> AsyncIterator[OpenBook]:
        del run
        check_programs()
        yield OpenBook()

    @property
    def book(self) -> Book:
        """The workbook of the current run."""
        return self.opened.book
