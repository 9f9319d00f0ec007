"""`hud sync`: tasks here and tasks on the platform."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hud.cli.output import console, count, print_json, some
from hud.cli.running import run
from hud.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.eval.syncing import SyncPlan


@click.group("sync", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Bring tasks to the platform, or from it. Alone: the tasks of this folder, to where they went last."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(tasks, taskset=None, source=Path("."))


@command.command("tasks")
@click.argument("taskset", required=False)
@click.argument("source", type=click.Path(path_type=Path), default=Path("."))
@click.option("--task", "only", metavar="SLUG", help="This task only.")
@click.option("--force", is_flag=True, help="Send rows that have not changed too.")
@click.option(
    "--export",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the platform's taskset to a .json, .jsonl or .csv file instead.",
)
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tasks(
    taskset: str | None,
    source: Path,
    only: str | None = None,
    force: bool = False,
    export: Path | None = None,
    dry_run: bool = False,
    yes: bool = False,
    as_json: bool = False,
) -> None:
    """Send the tasks in SOURCE to TASKSET, which is made if need be. Nothing is removed there."""
    if export is not None:
        run(_export(taskset, source, export, as_json))
        return
    run(_send(taskset, source, only, force=force, dry_run=dry_run, yes=yes, as_json=as_json))


async def _send(
    taskset: str | None,
    source: Path,
    only: str | None,
    *,
    force: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    from hud.cli.links import link
    from hud.eval import Taskset
    from hud.eval.syncing import plan, send

    local = Taskset.from_file(source)
    if only is not None:
        local = local.filter([only])
    name = taskset or await _linked(source)
    planned = await plan(name, local)
    wanted = [*planned.to_apply, *(planned.unchanged if force else [])]
    if not as_json:
        _show(planned)
    if dry_run or not wanted:
        if as_json:
            print_json(_counts(planned, dry_run=dry_run))
        elif dry_run:
            console().print("Nothing was sent (--dry-run).")
        return
    if not yes and not as_json and console().is_terminal:
        click.confirm(f"Send {count(len(wanted), 'task')}?", abort=True, err=True)
    answer = await send(name, wanted)
    await link(source, taskset_id=answer["taskset_id"])
    if as_json:
        print_json({**_counts(planned, dry_run=False), **answer})
        return
    console().print(
        f"Sent: {answer['tasks_created']} new, {answer['tasks_updated']} changed. "
        f"Next: hud eval {name} AGENT --all",
        markup=False,
    )


async def _export(taskset: str | None, source: Path, target: Path, as_json: bool) -> None:
    from hud.eval.syncing import fetch

    found = await fetch(taskset or await _linked(source))
    if target.suffix == ".csv":
        _write_csv(found.tasks, target)
    else:
        found.to_file(target)
    if as_json:
        print_json({"taskset": found.name, "tasks": len(found), "file": str(target)})
    else:
        console().print(f"Wrote {count(len(found), 'task')} to {target}.", markup=False)


async def _linked(source: Path) -> str:
    """Return the name of the taskset that this folder's tasks went to last."""
    from hud.cli.links import linked
    from hud.client import connect

    known = await linked(source, "taskset_id")
    if known is None:
        raise UsageError("Name the taskset: hud sync tasks TASKSET [SOURCE].")
    try:
        found = await connect().get(f"/v2/tasksets/{known}")
    except NotFoundError:
        raise UsageError(
            "The taskset that this folder's tasks went to is gone; name one: hud sync tasks TASKSET"
        ) from None
    return str(found["name"])


def _show(planned: SyncPlan) -> None:
    out = console()
    for mark, group in (("+", planned.to_create), ("~", planned.to_update)):
        if group:
            out.print(f"  {mark} {some([task.slug for task in group], 12)}", markup=False)
    if planned.remote_only:
        names = some([task.slug for task in planned.remote_only])
        out.print(f"  only on the platform, and staying there: {names}", markup=False)
    out.print(planned.summary(), markup=False)


def _counts(planned: SyncPlan, *, dry_run: bool) -> dict[str, object]:
    return {
        "taskset": planned.taskset_name,
        "to_create": [task.slug for task in planned.to_create],
        "to_update": [task.slug for task in planned.to_update],
        "unchanged": len(planned.unchanged),
        "remote_only": [task.slug for task in planned.remote_only],
        "dry_run": dry_run,
    }


def _write_csv(tasks: list[Task], target: Path) -> None:
    import csv

    import orjson

    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        names = sorted({name for task in tasks for name in (task.columns or {})})
        writer.writerow(["slug", "env", "id", "args", *names])
        for task in tasks:
            columns = task.columns or {}
            writer.writerow(
                [
                    task.slug,
                    task.env,
                    task.id,
                    orjson.dumps(task.args).decode(),
                    *(columns.get(name, "") for name in names),
                ]
            )
