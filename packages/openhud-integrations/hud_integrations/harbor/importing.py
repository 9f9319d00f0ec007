"""Import of Harbor task folders: copies, with an `env.py` and an `oracle.py` for each kind of sandbox that they need."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from hud.errors import UsageError
from hud.eval.runtimes.containers.container_engine import has_engine
from hud.exchange.left_out import LeftOut
from hud_integrations.harbor.task_folder import TaskFolder, read_folders

_ENV = '''"""Tasks of Harbor, in the folder `tasks`."""

from pathlib import Path

from hud_integrations.harbor import HarborEnvironment

env = HarborEnvironment(Path(__file__).parent / "tasks", name={name!r}{images})
tasks = env.all_tasks()
'''
_ORACLE = '''"""The agent that plays each task with its own solution."""

from env import env

agent = env.oracle
'''


def import_folder(source: Path, output: Path) -> tuple[dict[Path, int], list[LeftOut]]:
    """Copy the tasks of `source` into a new folder; returns the written folders with their numbers of tasks.

    Tasks that need different sandboxes (image, working directory, network, variables) are in folders of their own in `output`.
    A task is played in the image of its Dockerfile if `add_image` named its bases, else with this machine's programs; one with a
    Compose file by docker or podman, where one answers.
    Raises `UsageError` if there is no task that can be played, or if `output` exists.
    """
    if output.exists():
        raise UsageError(f"{output} exists; name a new folder with -o.")
    tasks = read_folders(source, images=None, services=_has_services(source) and has_engine())
    left_out = [LeftOut(task.name, part) for task in tasks for part in task.lost]
    left_out += [LeftOut(task.name, part, is_task=True) for task in tasks for part in task.refused]
    groups: dict[object, list[TaskFolder]] = {}
    for task in tasks:
        if not task.refused:
            groups.setdefault(task.settings, []).append(task)
    if not groups:
        reasons = "; ".join(sorted({omission.part for omission in left_out if omission.is_task}))
        raise UsageError(f"No task of {source} can be played in a workspace: {reasons}.")
    written: dict[Path, int] = {}
    for number, group in enumerate(groups.values(), 1):
        folder = output if len(groups) == 1 else output / f"{number}{_name(group[0].workdir)}"
        for task in group:
            shutil.copytree(task.folder, folder / "tasks" / task.name, symlinks=True)
        first = group[0]
        images = (
            ", engine=True"
            if first.has_services
            else ""
            if first.dockerfile is None
            else ", images=True"
        )
        name = _name(source.resolve().name)[1:]
        (folder / "env.py").write_text(_ENV.format(name=name, images=images))
        (folder / "oracle.py").write_text(_ORACLE)
        written[folder] = len(group)
    return written, left_out


def _has_services(source: Path) -> bool:
    """Return whether a task below a folder has a Compose file."""
    return next(source.rglob("environment/docker-compose.yaml"), None) is not None


def _name(text: str) -> str:
    """Return a text as part of a name: `-`, then letters, digits and hyphens."""
    return "-" + (re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower() or "harbor")
