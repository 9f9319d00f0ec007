"""The category `editor`: its kinds of edits, and a script that makes them line by line."""

from __future__ import annotations

from difflib import SequenceMatcher
from random import Random
from typing import TYPE_CHECKING, Any

from hud_benchmarks.autonomy.applications.editor import prose, structured
from hud_benchmarks.autonomy.applications.editor.document import Edit
from hud_benchmarks.autonomy.category import Category
from hud_benchmarks.autonomy.desktop import NEEDS, Computer

if TYPE_CHECKING:
    from hud.environment import Task

KINDS = {
    "terms": prose.terms,
    "agenda": prose.agenda,
    "review": prose.review,
    "notes": prose.notes,
    "prices": structured.prices,
    "configuration": structured.configuration,
    "addresses": structured.addresses,
    "program": structured.program,
}


def edit(kind: str, seed: int) -> Edit:
    """Return what a task asks for."""
    return KINDS[kind](Random(f"{kind} {seed}"))


async def _play(run: Any) -> None:
    """Go to each line that differs, from the last to the first, and type what it is to be."""
    task_edit = edit(**run.task.args)
    computer = Computer(run, await run.open("rfb"))
    before, wanted = task_edit.before.splitlines(), task_edit.wanted.splitlines()
    changes = SequenceMatcher(None, before, wanted, autojunk=False).get_opcodes()
    for what, first, last, start, end in reversed(changes):
        if what == "equal":
            continue
        await computer.press("ctrl", "l")
        await computer.type(str(first + 1))
        await computer.press("Return")
        for _ in range(last - first):
            await computer.press("shift", "Down")
        if start == end:
            await computer.press("Delete")
        else:
            await computer.type("".join(f"{line}\n" for line in wanted[start:end]))
    await computer.press("ctrl", "s")


def category() -> Category:
    """Return the category."""

    def make_task(kind: str, seed: int) -> Task:
        from hud_benchmarks.autonomy.applications.editor.environment import document

        return document(kind=kind, seed=seed)

    scripts = dict.fromkeys(KINDS, _play)
    return Category("editor", tuple(KINDS), make_task, scripts, (*NEEDS, "mousepad"))
