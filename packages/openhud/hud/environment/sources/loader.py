"""Environments from files and modules."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from hud.environment.environment import Environment
from hud.environment.sources.near_files import no_file
from hud.environment.sources.required_modules import is_required
from hud.environment.sources.variables import set_variables
from hud.environment.templates.agent_tool import AgentTool
from hud.environment.templates.task import Task
from hud.errors import HudError, NotFoundError, UsageError, innermost_frame, text_of
from hud.foreign_code import is_failure
from hud.plugs import own_packages

FOLDER_FILES = ("env.py", "environment.py", "tasks.py", "main.py")
_serial = count()
_folders: set[str] = set()
"""Folders of loaded files."""


def load_environment(target: str | Path, *, name: str | None = None) -> Environment:
    """Return the environment at `path.py`, `path.py:attribute`, a folder, or `module:attribute`.

    Of several in a file, `name` (or the attribute) selects one; the default is the one whose subagents the others are.
    Raises `UsageError` with file and line if the file cannot be loaded.
    """
    text, _, attribute = str(target).partition(":")
    path = Path(text)
    if path.is_dir():
        files = [path / file for file in FOLDER_FILES if (path / file).exists()]
        if not files:
            raise NotFoundError(
                f"{path} has no {', '.join(FOLDER_FILES[:-1])} or {FOLDER_FILES[-1]}."
            )
        path = files[0]
    module = load_file(path) if path.suffix == ".py" else load_module(text)
    return _pick(module, str(path), attribute, name)


def load_file(path: Path) -> ModuleType:
    """Execute a Python file as a new module, with its folder importable and its `.env` set; errors name file and line.

    Raises `NotFoundError` if there is none, `UsageError` for one that is no regular file.
    """
    if not path.exists():
        raise NotFoundError(no_file(path))
    if not path.is_file():  # A device is read without end, a pipe waited for.
        raise UsageError(f"{path} is not a regular file.")
    path = path.resolve()
    _refuse_shadowing(path)
    _make_neighbours_importable(path.parent)
    set_variables(path.parent)
    name = f"hud_environment_{path.stem}_{next(_serial)}"
    # By its loader: a link's file may have another suffix.
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # Annotations are resolved in it.
    with _telling_where(str(path)):
        loader.exec_module(module)
    return module


@contextmanager
def _telling_where(target: str) -> Iterator[None]:
    """Convert exceptions of executing a file to `UsageError` with file and line."""
    try:
        yield
    except SyntaxError as error:
        raise UsageError(f"{error.filename}:{error.lineno}: {error.msg}.") from None
    except HudError:
        raise
    except BaseException as error:
        if not is_failure(error):
            raise
        frame = innermost_frame(error)
        if frame is None or frame.filename == __file__ or "importlib" in frame.filename:
            where = target
        else:
            where = f"{frame.filename}:{frame.lineno}"
        raise UsageError(f"{where}: {type(error).__name__}: {text_of(error)}") from error


def _refuse_shadowing(path: Path) -> None:
    """Raise `UsageError` for a file that would be imported instead of a module that this package or its libraries import."""
    packages = (file.parent for file in path.parent.glob("*/__init__.py"))
    for file in (path, *sorted(path.parent.glob("*.py")), *sorted(packages)):
        used = file == path or file.stem in sys.modules
        owner = None
        if used and file.stem in sys.stdlib_module_names - {"test"}:
            owner = "Python's standard library"
        elif file.stem in own_packages() or is_required(file.stem):
            owner = "an installed package"
        if owner is not None:
            raise UsageError(
                f"{file} has the name of a module of {owner}, which other modules import; "
                f"rename it, for example to my_{file.name}."
            )


def _make_neighbours_importable(folder: Path) -> None:
    """Make a file's neighbours importable, also if another environment's neighbours have the same names."""
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))
    _folders.add(str(folder))
    # Most environments have an `env.py`: a cached module of another folder must not be used.
    neighbours = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    others = _folders - {str(folder)}
    stale = {
        name
        for name in neighbours & sys.modules.keys()
        if not others.isdisjoint(_homes(sys.modules[name]))
    }
    for name in list(sys.modules):
        if name.partition(".")[0] in stale:
            del sys.modules[name]


def _homes(module: ModuleType) -> set[str]:
    """Return the folders that hold a module: its file, or the folders of its package."""
    # Not by their names: an object in sys.modules may answer any name.
    attributes = getattr(module, "__dict__", {})
    places = attributes.get("__path__") or [attributes.get("__file__")]
    return {str(Path(place).parent) for place in places if isinstance(place, str)}


def load_module(name: str) -> ModuleType:
    """Import a module by its dotted name; errors name file and line. Raises `NotFoundError` if there is none."""
    with _telling_where(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # Raised by an import within the module.
            raise NotFoundError(f"There is no file or module {name!r} ({error}).") from None


def _pick(module: ModuleType, where: str, attribute: str, name: str | None) -> Environment:
    if attribute:
        value = getattr(module, attribute, None)
        if not isinstance(value, Environment):
            kind = (
                "has no"
                if value is None
                else f"has a {type(value).__name__}, not an Environment, at"
            )
            raise UsageError(f"{where} {kind} {attribute!r}.")
        return value
    unique = environments_of(module)
    environments = [value for value in unique if name is None or value.name == name]
    if not environments:  # A file of tasks alone, such as held-out ones.
        unique += [value for value in _environments_of_tasks(module) if value not in unique]
        environments = [value for value in unique if name is None or value.name == name]
    if name is None and len(environments) > 1:
        # In a hierarchy, the environment is the one whose subagents the others are.
        environments = [
            value for value in environments if not _is_called(value, environments)
        ] or environments
    if len(environments) == 1:
        return environments[0]
    names = ", ".join(value.name for value in unique)
    if not environments:
        raise UsageError(
            f"{where} holds no Environment{f' named {name!r} (it has: {names})' if name and names else ''}."
        )
    raise UsageError(f"{where} holds several environments ({names}); name one: {where}:ATTRIBUTE.")


def environments_of(module: ModuleType) -> list[Environment]:
    """Return the distinct top-level environments of a module."""
    environments = {
        id(value): value for value in vars(module).values() if isinstance(value, Environment)
    }
    return list(environments.values())


def tasks_in(value: Any) -> Iterator[Task]:
    """Yield the tasks of a module's attribute: a task, or those of a list, a tuple, a dict or a taskset."""
    if isinstance(value, dict):
        value = value.values()
    elif isinstance(value, Task):
        value = [value]
    elif not isinstance(value, list | tuple):
        value = getattr(value, "tasks", None)
        value = value if isinstance(value, list) else []
    yield from (item for item in value if isinstance(item, Task))


def _environments_of_tasks(module: ModuleType) -> list[Environment]:
    """Return the distinct environments of a module's top-level tasks."""
    tasks = [task for value in vars(module).values() for task in tasks_in(value)]
    bound = [task.environment for task in tasks if task.environment is not None]
    return list({id(environment): environment for environment in bound}.values())


def _is_called(environment: Environment, callers: Iterable[Environment]) -> bool:
    """Return True if another environment has a subagent in this one."""
    return any(
        isinstance(tool, AgentTool) and tool.template.environment is environment
        for caller in callers
        if caller is not environment
        for tool in caller.tools.values()
    )
