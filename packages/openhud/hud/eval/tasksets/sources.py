"""Tasks from and to files: Python modules, JSON and JSONL rows, folders.

Rows name their environment; if its file is in the rows' folder (`env.py`, `environment.py`, `tasks.py` or `NAME.py`), the
tasks are bound to it.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from hud import exact_json
from hud.environment import Environment, Task
from hud.environment.sources.loader import environments_of, load_file, load_module, tasks_in
from hud.environment.sources.near_files import no_file
from hud.errors import NotFoundError, UsageError
from hud.input_files import read_input

_FOLDER_FILES = ("tasks.py", "taskset.py", "tasks.jsonl", "tasks.json", "env.py", "environment.py")
_EXPORTED = {"scenario": "id", "task_id": "id", "name": "slug"}
"""Field names of a platform's export and upload, by `Task` field."""


def load_tasks(path: Path) -> list[Task]:
    """Return the tasks of a file or a folder; raises `UsageError` with the place of an error."""
    if path.is_dir():
        return _from_folder(path)
    if not path.exists():
        raise NotFoundError(no_file(path))
    if path.suffix == ".py":
        return tasks_of(load_file(path), path)
    if path.suffix in (".json", ".jsonl"):
        return _from_rows(path)
    raise UsageError(f"{path}: tasks are read from .py, .json and .jsonl files, and from folders.")


def load_module_tasks(source: str | Path) -> list[Task]:
    """Return the tasks of a Python file or of an importable module."""
    path = Path(source)
    if path.suffix == ".py" or path.exists():
        return load_tasks(path)
    return tasks_of(load_module(str(source)), path)


def save_tasks(tasks: Iterable[Task], path: Path) -> None:
    """Write tasks as rows, one per line for `.jsonl`, an array for `.json`. Raises `UsageError` for another suffix."""
    rows = [task.model_dump(mode="json", exclude_none=True) for task in tasks]
    if path.suffix == ".jsonl":
        content = b"".join(exact_json.dumps(row) + b"\n" for row in rows)
    elif path.suffix == ".json":
        content = exact_json.dumps(rows, option=exact_json.OPT_INDENT_2) + b"\n"
    else:
        raise UsageError(f"{path}: tasks are written to .json and .jsonl files.")
    path.write_bytes(content)


def tasks_of(module: ModuleType, origin: Path) -> list[Task]:
    """Return the tasks of `tasks`; without it all of a module, or one of each template without required arguments.

    Raises `UsageError` without tasks.
    """
    if named := list(tasks_in(getattr(module, "tasks", None))):
        return named
    tasks: dict[int, Task] = {}
    for name, value in vars(module).items():
        if not name.startswith("_"):
            for task in tasks_in(value):
                tasks.setdefault(id(task), task)
    if tasks:
        return list(tasks.values())
    minted = [task for value in environments_of(module) for task in _mint(value)]
    if not minted:
        raise UsageError(
            f"{origin} defines no tasks: make some at its top level, such as "
            "tasks = [template(argument=...)]."
        )
    return minted


def _from_folder(folder: Path) -> list[Task]:
    for name in _FOLDER_FILES:
        if (folder / name).is_file():
            return load_tasks(folder / name)
    files = sorted(folder.glob("*.py"))
    if len(files) == 1:
        return load_tasks(files[0])
    raise UsageError(
        f"The folder {folder} holds none of {', '.join(_FOLDER_FILES)}; name the file to load."
    )


def _from_rows(path: Path) -> list[Task]:
    tasks = [_parse(row, place) for row, place in _rows(path)]
    for name in dict.fromkeys(task.env for task in tasks):
        environment = _environment_beside(path, name)
        if environment is not None:
            for task in tasks:
                if task.env == name:
                    task.bind(environment)
    return tasks


def _rows(path: Path) -> Iterator[tuple[Any, str]]:
    """Yield each row of a file and its place."""
    content = read_input(path).removeprefix(BOM_UTF8)
    if path.suffix == ".jsonl":
        for number, line in enumerate(content.splitlines(), start=1):
            if line.strip():
                yield _json(line, path, number), f"{path}:{number}"
        return
    document = _json(content, path, 1)
    if isinstance(document, dict):
        document = document.get("tasks", [document])
    if not isinstance(document, list):
        raise UsageError(f"{path}: expected an array of tasks, or an object with tasks.")
    for number, row in enumerate(document, start=1):
        yield row, f"{path}: task {number}"


def _json(content: bytes, path: Path, first_line: int) -> Any:
    try:
        return exact_json.loads(content)
    except exact_json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise UsageError(f"{path}:{line}: the file is not valid JSON: {error.msg}.") from None


def _parse(row: Any, place: str) -> Task:
    if isinstance(row, dict):
        row = {_EXPORTED.get(key, key): value for key, value in row.items() if value is not None}
        if isinstance(row.get("env"), dict):
            row["env"] = row["env"].get("name")
    try:
        return Task.model_validate(row)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise UsageError(f"{place}: {where or 'the row'}: {problem['msg']}.") from None


def _environment_beside(path: Path, name: str) -> Environment | None:
    """Return the environment `name` from a file in the folder of `path`, or None."""
    for stem in ("env", "environment", "tasks", name):
        candidate = path.parent / f"{stem}.py"
        if candidate.is_file():
            for environment in environments_of(load_file(candidate)):
                if environment.name == name:
                    return environment
    return None


def _mint(environment: Environment) -> Iterator[Task]:
    """Yield a task of each template whose arguments all have defaults."""
    for template in environment.templates.values():
        if not template.args_schema.get("required"):
            yield template()
