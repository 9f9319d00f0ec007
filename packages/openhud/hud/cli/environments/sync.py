"""`hud sync`: upload, download and linking of tasks and environments."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hud.cli.output import console, count, print_json, some, tell
from hud.cli.platform_requests import run
from hud.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.eval.tasksets.synchronization import SyncPlan


_MOST_SHOWN = 20
"""Maximum number of changed rows that are shown individually."""


@click.group("sync", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Upload and download tasks, and link environments. Alone: upload this folder's tasks to their last taskset."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(tasks, taskset=None, source=Path("."))


@command.command("tasks")
@click.argument("taskset", required=False)
@click.argument("source", metavar="[TASKS]", type=click.Path(path_type=Path), default=Path("."))
@click.option("--task", "only", metavar="SLUG", help="This task only.")
@click.option("--force", is_flag=True, help="Send unchanged rows, too.")
@click.option(
    "--export",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the platform's taskset to a .json, .jsonl or .csv file instead.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, without changing it.")
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
    """Upload TASKS to the platform's TASKSET, which is created if missing. Nothing is removed there."""
    if export is not None:
        run(_export(taskset, source, export, as_json))
        return
    run(_send(taskset, source, only, force=force, dry_run=dry_run, yes=yes, as_json=as_json))


@command.command("env")
@click.argument("name", required=False)
@click.argument(
    "folder", type=click.Path(path_type=Path, exists=True, file_okay=False), default=Path(".")
)
@click.option("--dry-run", is_flag=True, help="Show what would be linked, without linking it.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def environment(name: str | None, folder: Path, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Link FOLDER to the platform's environment NAME; default: the name in its source."""
    run(_link_environment(name, folder, dry_run=dry_run, yes=yes, as_json=as_json))


async def _link_environment(
    name: str | None, folder: Path, *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    from urllib.parse import quote

    from hud.cli.environments.links import link, linked
    from hud.client import connect

    wanted = name or _declared(folder)
    try:
        environment = await connect().get(f"/v2/registry/{quote(wanted, safe='')}")
    except NotFoundError:
        raise NotFoundError(
            f"The platform has no environment {wanted!r}. Bring it: hud deploy {folder}"
        ) from None
    before = await linked(folder, "registry_id")
    version = (environment["latest_build"] or {}).get("version")
    linked_to = {
        "registry_id": environment["id"],
        "name": environment["name"],
        "version": version,
        "before": before,
        "dry_run": dry_run,
    }
    if not as_json:
        of = f"version {version}" if version else "no version yet"
        console().print(
            f"{folder} is linked to {environment['name']} ({of}) already."
            if before == environment["id"]
            else f"{folder}: {before or 'linked to nothing'} → {environment['name']} {environment['id']} ({of})",
            markup=False,
        )
    if not dry_run and before != environment["id"]:
        if not yes and not as_json and console().is_terminal:
            click.confirm("Link it?", abort=True, err=True)
        await link(folder, registry_id=environment["id"])
    if as_json:
        print_json(linked_to)
    elif dry_run:
        console().print("Nothing was linked (--dry-run).")


def _declared(folder: Path) -> str:
    """Return the name of a folder's environment."""
    from hud.environment.sources.declarations import declared_names, entry_of

    file = entry_of(folder)
    names = declared_names(file)
    if len(names) != 1:
        raise UsageError(
            f"{file} makes {count(len(names), 'environment')} by name; say which: hud sync env NAME"
        )
    return names[0]


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
    from hud.cli.environments.links import link
    from hud.eval import Taskset
    from hud.eval.tasksets.synchronization import plan, send

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
        f"Next: hud eval {shlex.quote(name)} AGENT --all",
        markup=False,
    )


async def _export(taskset: str | None, source: Path, target: Path, as_json: bool) -> None:
    from hud.eval.tasksets.synchronization import fetch

    exported = await fetch(taskset or await _linked(source))
    if target.suffix == ".csv":
        _write_csv(exported.tasks, target)
    else:
        exported.to_file(target)
    wrote = {"taskset": exported.name, "tasks": len(exported), "file": str(target)}
    tell(as_json, wrote, f"Wrote {count(len(exported), 'task')} to {target}.")


async def _linked(source: Path) -> str:
    """Return the taskset name of this folder's last upload."""
    from hud.cli.environments.links import linked
    from hud.client import connect

    taskset_id = await linked(source, "taskset_id")
    if taskset_id is None:
        raise UsageError("Name the taskset: hud sync tasks TASKSET [TASKS].")
    try:
        row = await connect().get(f"/v2/tasksets/{taskset_id}")
    except NotFoundError:
        raise UsageError(
            "The taskset that this folder's tasks went to is gone; name one: hud sync tasks TASKSET"
        ) from None
    return str(row["name"])


def _show(planned: SyncPlan) -> None:
    out = console()
    if planned.to_create:
        out.print(f"  + {some([task.slug for task in planned.to_create], 12)}", markup=False)
    for task in planned.to_update[:_MOST_SHOWN]:
        changes = planned.changes(task)
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        shown = "; ".join(
            change if len(change) <= 100 else f"{change[:99]}…" for change in changes[:3]
        )
        out.print(f"  ~ {task.slug}  {shown}{more}", markup=False)
    if (rest := len(planned.to_update) - _MOST_SHOWN) > 0:
        out.print(f"  ~ and {rest} more")
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
    from hud import exact_json
    from hud.cli.csv_file import write_csv

    names = sorted({name for task in tasks for name in (task.columns or {})})
    write_csv(
        target,
        ["slug", "env", "id", "args", *names],
        (
            [
                task.slug,
                task.env,
                task.id,
                exact_json.dumps(task.args).decode(),
                *((task.columns or {}).get(name, "") for name in names),
            ]
            for task in tasks
        ),
    )
