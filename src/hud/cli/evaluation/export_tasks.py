"""Writers of `hud export` for tasks."""

from __future__ import annotations

from pathlib import Path


def write_tasks(source: str, form: str, output: Path) -> None:
    """Write tasks in the given form, and print what was left out, by name."""
    from hud.cli.evaluation.task_source import task_source
    from hud.cli.output import console, count
    from hud.errors import UsageError
    from hud.integrations.left_out import lines_of

    tasks = task_source(source, None, None).tasks
    try:
        if form == "harbor":
            from hud.integrations.harbor import export_tasks

            written, left_out = export_tasks(tasks, output)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from error
    console().print(f"{count(written, 'task')} of {tasks.name} written to {output}")
    for line in lines_of(left_out):
        console().print(line, markup=False)
