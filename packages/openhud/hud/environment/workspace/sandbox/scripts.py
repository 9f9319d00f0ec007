"""OpenHUD's scripts inside a sandbox: the interpreter that executes them, and their files.

A sandbox is started for each run, so the scripts are compiled once in this process, if the interpreter inside reads its
bytecode; otherwise they are compiled at each start.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
from functools import cache
from pathlib import Path

from hud.environment.workspace.sandbox.mounts import INSIDE
from hud.errors import EnvironmentFault

_SCRIPTS = Path(__file__).parents[1] / "inside"
_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
_HEADER = importlib.util.MAGIC_NUMBER + bytes(12)
"""Header of a compiled file; date and size of its source are not compared where it is executed directly."""


def script(name: str, *arguments: str) -> list[str]:
    """Return the command of a script inside."""
    python, _ = _interpreter()
    suffix = "pyc" if _reads_our_bytecode() else "py"
    return [python, "-E", "-s", "-S", "-B", f"{INSIDE}/{name}.{suffix}", *arguments]


def script_mounts() -> list[str]:
    """Return bubblewrap arguments for the scripts' own needs besides the system's programs."""
    return _interpreter()[1]


@cache
def script_files() -> dict[str, bytes]:
    """Return the contents of a workspace's scripts, by path inside."""
    files = {}
    for source in sorted(_SCRIPTS.rglob("*.py")):
        path = f"{INSIDE}/{source.relative_to(_SCRIPTS)}"
        if source.parent != _SCRIPTS:
            files[path] = source.read_bytes()  # A module of the commands' own interpreters.
        elif source.name != "__init__.py":
            files |= dict([script_file(source)])
    return files


@cache
def script_file(source: Path) -> tuple[str, bytes]:
    """Return a script's path inside, and its contents."""
    path, text = f"{INSIDE}/{source.name}", source.read_bytes()
    if not _reads_our_bytecode():
        return path, text
    code = compile(text, path, "exec", dont_inherit=True, optimize=2)
    return f"{path}c", _HEADER + marshal.dumps(code)


@cache
def _interpreter() -> tuple[str, list[str]]:
    """Return the scripts' Python, by its path inside, and its mounts.

    It is the machine's, which a workspace also has as `python3`, else that of this process.
    """
    for path in _PYTHONS:
        if os.path.exists(path):
            return path, []
    own, prefix = os.path.realpath(sys.executable), os.path.realpath(sys.base_prefix)
    if not own.startswith(prefix + os.sep):
        raise EnvironmentFault(
            "A workspace needs a Python of the machine at /usr/bin/python3: apt install python3."
        )
    inside = f"{INSIDE}/python"
    return inside + own.removeprefix(prefix), ["--ro-bind", prefix, inside]


@cache
def _reads_our_bytecode() -> bool:
    """True if the scripts' Python is a CPython of this process's version, by its file's name."""
    python, mounts = _interpreter()
    ours = f"python{sys.version_info.major}.{sys.version_info.minor}"
    named = os.path.basename(os.path.realpath(python)) == ours
    released = sys.version_info.releaselevel == "final"
    return sys.implementation.name == "cpython" and released and (bool(mounts) or named)
