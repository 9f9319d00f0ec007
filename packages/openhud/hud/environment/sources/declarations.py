"""Environments declared in a source, by static analysis: its imports need not be installed."""

from __future__ import annotations

import ast
from pathlib import Path

from hud.environment.sources.loader import FOLDER_FILES
from hud.errors import NotFoundError, UsageError

_CLASS = "Environment"
_DEFAULT = "environment"


def declared_names(file: Path) -> list[str]:
    """Return the literal names of a file's `Environment("name")` calls, in order."""
    return [name for name in dict.fromkeys(_names(file)) if name is not None]


def entry_of(folder: Path, name: str | None = None) -> Path:
    """Return the file of a folder that creates its environment, or the environment `name`.

    The default file names have priority. Raises `NotFoundError` if no file creates one, and `UsageError` if several do and
    `name` selects none of them.
    """
    usual = [folder / file for file in FOLDER_FILES if (folder / file).is_file()]
    others = sorted(file for file in folder.glob("*.py") if file not in usual and file.is_file())
    making = {file: names for file in (*usual, *others) if (names := _names(file))}
    if name is not None:
        for file, names in making.items():
            if name in names:
                return file
    if usual:
        # The default file, also if its environment is not found statically.
        return next((file for file in usual if file in making), usual[0])
    if not making:
        raise NotFoundError(
            f"{folder} has no {', '.join(FOLDER_FILES)}, and no other file that makes an Environment."
        )
    if len(making) > 1:
        shown = ", ".join(file.name for file in making)
        raise UsageError(f"{folder} makes environments in {shown}; name the file.")
    return next(iter(making))


def _names(file: Path) -> list[str | None]:
    """Return the name of each `Environment(...)` call of a file; None for a computed name."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _makes_one(node)]
    return [_name(call) for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset))]


def _makes_one(call: ast.Call) -> bool:
    function = call.func
    called = function.attr if isinstance(function, ast.Attribute) else None
    return (function.id if isinstance(function, ast.Name) else called) == _CLASS


def _name(call: ast.Call) -> str | None:
    """Return the name in a call, or None if it is computed."""
    argument: ast.expr | None = call.args[0] if call.args else None
    for keyword in call.keywords:
        if keyword.arg == "name":
            argument = keyword.value
    if argument is None:
        return _DEFAULT
    return (
        argument.value
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        else None
    )
