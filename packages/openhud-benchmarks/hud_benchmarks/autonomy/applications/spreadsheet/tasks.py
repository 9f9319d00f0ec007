"""The category `spreadsheet`: its kinds of works, and a script that writes the cells that differ."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.applications.spreadsheet import formulas, tables
from hud_benchmarks.autonomy.applications.spreadsheet.work import Work, blocks
from hud_benchmarks.autonomy.category import Category
from hud_benchmarks.autonomy.desktop import NEEDS, Computer

if TYPE_CHECKING:
    from hud.environment import Task

KINDS = {
    "ledger": tables.ledger,
    "distribution": tables.distribution,
    "rota": tables.rota,
    "invoice": formulas.invoice,
    "summary": formulas.summary,
    "grades": formulas.grades,
    "stock": formulas.stock,
    "repair": formulas.repair,
}


_NAME_BOX = (100, 136)
"""Field that shows the cell's name, and goes where another one is typed."""


def work(kind: str, seed: int) -> Work:
    """Return what a task asks for."""
    return KINDS[kind](Random(f"{kind} {seed}"))


async def _play(run: Any) -> None:
    """Go to each rectangle of cells that differ, and type its rows."""
    task_work = work(**run.task.args)
    computer = Computer(run, await run.open("rfb"))
    for block in blocks(task_work.before, task_work.wanted):
        await computer.click(*_NAME_BOX)
        await computer.press("ctrl", "a")
        await computer.type(f"{block.place}\n")
        for row in block.rows:
            if any(cell is not None for cell in row):
                await computer.type("\t".join(map(str, row)) + "\n")
                continue
            for _ in row[1:]:
                await computer.press("shift", "Right")
            await computer.press("Delete")
            await computer.press("Down")
    await computer.press("ctrl", "s")


def category() -> Category:
    """Return the category."""

    def make_task(kind: str, seed: int) -> Task:
        from hud_benchmarks.autonomy.applications.spreadsheet.environment import workbook

        return workbook(kind=kind, seed=seed)

    scripts = dict.fromkeys(KINDS, _play)
    return Category("spreadsheet", tuple(KINDS), make_task, scripts, (*NEEDS, "gnumeric"))
