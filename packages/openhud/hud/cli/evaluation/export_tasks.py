"""Writers of `hud export` for tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hud.eval import Taskset
    from hud.integrations.shared.left_out import LeftOut


Writer = Callable[["Taskset", Path], tuple[int, "list[LeftOut]"]]


def write_tasks(source: str, form: str, output: Path) -> None:
    """Write tasks in the given form, and print what was left out, by name."""
    from hud.cli.evaluation.task_source import task_source
    from hud.cli.output import console, count
    from hud.errors import UsageError
    from hud.integrations.shared.left_out import lines_of

    tasks = task_source(source, None, None).tasks
    try:
        written, left_out = _writer(form)(tasks, output)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
    console().print(f"{count(written, 'task')} of {tasks.name} written to {output}")
    for line in lines_of(left_out):
        console().print(line, markup=False)


def _writer(form: str) -> Writer:
    if form == "harbor":
        from hud.integrations.harbor import export_tasks

        return export_tasks
    if form == "openrlhf":
        from hud.integrations.openrlhf import write_rows

        return write_rows
    if form == "rft":
        from hud.integrations import rft

        return rft.export_tasks
    from hud.integrations.verl import write_parquet

    return write_parquet
