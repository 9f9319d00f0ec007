"""Environment `autonomy-editor`: Mousepad on a desktop, with a document and what is to be read for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from hud.environment import Environment
from hud.graders import EvaluationResult
from hud_benchmarks.autonomy.applications.editor.document import grade_lines
from hud_benchmarks.autonomy.applications.editor.tasks import edit
from hud_benchmarks.autonomy.desktop import SIZE, VARIABLES, begin, end

DOCUMENT = "document.txt"
INSTRUCTION = (
    f"Mousepad is open with {DOCUMENT}; edit it there and save it under its name (ctrl+s). Change nothing in it but what "
    "is asked for. Only the saved file counts."
)

env = Environment("autonomy-editor")
desktop = env.desktop(size=SIZE, env=VARIABLES)


@env.template()
async def document(kind: str, seed: int) -> AsyncGenerator[Any, Any]:
    """Edit a document."""
    task_edit = edit(kind, seed)
    files = {DOCUMENT: task_edit.before, **task_edit.others}
    await begin(desktop, files, f"mousepad {' '.join([*task_edit.others, DOCUMENT])}")
    yield f"{task_edit.request}\n\n{INSTRUCTION}"
    await end(desktop)
    left = {name: (await desktop.read(name)).decode(errors="replace") for name in files}
    if any(left[name] != content for name, content in task_edit.others.items()):
        yield EvaluationResult(reward=0.0, content="A file that was only to be read was changed.")
    else:
        yield grade_lines(task_edit.before, task_edit.wanted, left[DOCUMENT])
