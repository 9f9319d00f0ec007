"""The category `files`: which chores make up a task, and its script."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from hud.trace import ToolCall
from hud_benchmarks.autonomy.applications.files import archives, content, sorting
from hud_benchmarks.autonomy.applications.files.chore import Chore, ChoreKind
from hud_benchmarks.autonomy.category import Category

if TYPE_CHECKING:
    from hud.environment import Task

CHORES: dict[str, ChoreKind] = {
    "memos": sorting.MEMOS,
    "backups": archives.BACKUPS,
    "modes": content.MODES,
    "pictures": sorting.PICTURES,
    "reports": archives.REPORTS,
    "changes": content.CHANGES,
    "scans": sorting.SCANS,
    "logs": archives.LOGS,
    "orders": content.ORDERS,
    "releases": sorting.RELEASES,
}
"""Chores by the name of their folder."""
_NAMES = list(CHORES)
KINDS = {
    first: (first, _NAMES[(place + 1) % len(_NAMES)], _NAMES[(place + 5) % len(_NAMES)])
    for place, first in enumerate(_NAMES)
}
"""The three chores of a task, by the name of its kind."""


def chores(kind: str, seed: int) -> dict[str, Chore]:
    """Return the chores of a task by their folders."""
    return {name: CHORES[name].make(Random(f"{name} {seed}")) for name in KINDS[kind]}


async def _play(run: Any) -> None:
    """Do the chores of a run's task with the bash tool."""
    from hud.agents.native.bash import BashTool

    run.attach(BashTool(await run.open("ssh")))
    for name in KINDS[run.task.args["kind"]]:
        for number, step in enumerate([f"cd /workspace/{name}", *CHORES[name].steps()]):
            call = ToolCall(id=f"{name}-{number}", name="bash", arguments={"command": step})
            await run.call_tool(call)


def category() -> Category:
    """Return the category."""

    def make_task(kind: str, seed: int) -> Task:
        from hud_benchmarks.autonomy.applications.files.environment import folders

        return folders(kind=kind, seed=seed)

    return Category("files", tuple(KINDS), make_task, dict.fromkeys(KINDS, _play), ("bubblewrap",))
