"""Files of an installed program: what a sandbox has to mount, at the same paths, so that it starts there.

A program is a binary, or a script with an interpreter, behind any number of links; a package of Python brings its virtual
environment and that of Node its `node_modules`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_LINKS = 40
"""Most files of a chain of links and interpreters."""
_MODULES = "node_modules"


def program_files(program: Path) -> list[Path]:
    """Return the files and folders with which `program`, an absolute path, starts."""
    waiting, seen = [program], list[Path]()
    paths: dict[Path, None] = {}
    while waiting and len(seen) < _LINKS:
        path = Path(os.path.normpath(waiting.pop()))
        if path in seen or not path.exists():
            continue
        seen.append(path)
        paths[_home_of(path)] = None
        waiting.append(path.resolve())  # A folder above it may be a link.
        base = _base_python(path)
        if base is not None:
            waiting.append(base)
        if path.is_symlink():
            waiting.append(path.parent / os.readlink(path))
        else:
            waiting += _interpreters(path)
    return [path for path in paths if not any(other in paths for other in path.parents)]


def _home_of(path: Path) -> Path:
    """Return the folder that belongs to a program's file, or the file itself."""
    environment = _environment_of(path)
    if environment is not None:
        return environment
    if _MODULES in path.parts:
        return Path(*path.parts[: path.parts.index(_MODULES) + 1])
    prefix = path.parent.parent
    if path.parent.name == "bin" and path.name.startswith("python") and (prefix / "lib").is_dir():
        return prefix
    return path


def _environment_of(path: Path) -> Path | None:
    """Return the virtual environment of a file, or None."""
    return next((folder for folder in path.parents if (folder / "pyvenv.cfg").is_file()), None)


def _base_python(path: Path) -> Path | None:
    """Return the interpreter on which the virtual environment of a file is built, or None."""
    environment = _environment_of(path)
    if environment is None:
        return None
    for line in (environment / "pyvenv.cfg").read_text().splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home":
            return Path(value.strip()) / "python3"
    return None


def _interpreters(path: Path) -> list[Path]:
    """Return the interpreters that the first line of a script names."""
    with path.open("rb") as file:
        first = file.readline(512)
    if not first.startswith(b"#!"):
        return []
    words = first[2:].decode("utf-8", "replace").split()
    if words and Path(words[0]).name == "env":
        names = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        interpreter = shutil.which(names[0]) if names else None
        return [] if interpreter is None else [Path(interpreter)]
    return [Path(words[0])] if words and words[0].startswith("/") else []
