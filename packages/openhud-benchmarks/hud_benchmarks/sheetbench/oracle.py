"""The agent that does the tasks with the tools: it writes the formulas and values of the reference solution."""

from __future__ import annotations

from typing import Any

from hud.agents import ScriptedAgent
from hud.environment.tools.spreadsheet import WRITE, write_blocks
from hud.trace import ToolCall
from hud_benchmarks.sheetbench.grading.exercise import Exercise
from hud_benchmarks.sheetbench.kinds import exercise
from hud_benchmarks.sheetbench.workbook.cells import Area, Content, shown


def solution(exercise: Exercise) -> list[tuple[str, dict[str, Any]]]:
    """Return the tool calls that do an exercise: what is written, block by block, then the steps of its kind."""
    contents: dict[str, dict[tuple[int, int], Content]] = {}
    for (sheet, cell), wanted in exercise.wanted():
        area = Area.parsed(cell)
        content = wanted.formula if wanted.formula is not None else shown(wanted.value)
        contents.setdefault(sheet, {})[area.top, area.left] = content
    calls = [
        (WRITE, {"sheet": sheet, "start": start, "rows": rows})
        for sheet, cells in contents.items()
        for start, rows in write_blocks(cells)
    ]
    return [*calls, *exercise.steps]


async def _play(run: Any) -> None:
    for place, (tool, arguments) in enumerate(solution(exercise(**run.task.args))):
        await run.call_tool(ToolCall(id=f"call_{place}", name=tool, arguments=arguments))


oracle = ScriptedAgent(_play, name="oracle")
