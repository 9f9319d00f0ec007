"""Environment `autonomy-spreadsheet`: Gnumeric on a desktop, with a workbook."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from typing import Any

from hud.environment import Environment
from hud.graders import EvaluationResult
from hud_benchmarks.autonomy.applications.spreadsheet.tasks import work
from hud_benchmarks.autonomy.applications.spreadsheet.values import State, UnreadableError, state
from hud_benchmarks.autonomy.applications.spreadsheet.work import Work
from hud_benchmarks.autonomy.applications.spreadsheet.workbook import file_of, with_inputs
from hud_benchmarks.autonomy.desktop import SIZE, VARIABLES, begin, end
from hud_benchmarks.autonomy.grading import grade_state

DOCUMENT = "workbook.gnumeric"
INSTRUCTION = (
    f"Gnumeric is open with {DOCUMENT}; change it there and save it under its name (ctrl+s). Change nothing in it but what "
    "is asked for: no other cell, no sheet, no order. Only the saved file counts."
)
_CONVERT = "cd {} && /usr/bin/ssconvert --recalc book.gnumeric book.xlsx"

env = Environment("autonomy-spreadsheet")
desktop = env.desktop(size=SIZE, env=VARIABLES)


@env.template()
async def workbook(kind: str, seed: int) -> AsyncGenerator[Any, Any]:
    """Change a workbook."""
    task_work = work(kind, seed)
    window = f"{SIZE[0] - 8}x{SIZE[1] - 28}+0+0"
    await begin(
        desktop,
        {DOCUMENT: file_of(task_work.before)},
        f"gnumeric --no-splash --geometry={window} {DOCUMENT}",
    )
    yield f"{task_work.request}\n\n{INSTRUCTION}"
    await end(desktop)
    left = await desktop.read(DOCUMENT)
    before, wanted = [
        await _state(file_of(book), task_work) for book in (task_work.before, task_work.wanted)
    ]
    try:
        yield grade_state(before, wanted, await _state(left, task_work))
    except UnreadableError:
        yield EvaluationResult(reward=0.0, content="What is left is no workbook.")


async def _state(file: bytes, task_work: Work) -> State:
    """Return the contents of a file's cells, as they are and with other inputs.

    Raises one of `UnreadableError` where it is no workbook.
    """
    files = []
    for inputs in ({}, task_work.other_inputs())[: 1 + bool(task_work.follows)]:
        # A new folder of a name that the agent could not know: nothing of its own is in the way.
        folder = f"/tmp/{secrets.token_hex(16)}"
        await desktop.write(f"{folder}/book.gnumeric", with_inputs(file, inputs))
        done = await desktop.bash(_CONVERT.format(folder))
        if done.exit_code != 0:
            raise ValueError(done.stderr)
        files.append(await desktop.read(f"{folder}/book.xlsx"))
    return state(files, task_work.changes())
