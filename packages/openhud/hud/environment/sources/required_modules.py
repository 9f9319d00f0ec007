"""Modules of the libraries that this package requires, directly or through another library."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from sysconfig import get_paths

_PACKAGE = "openhud"
_COMMON = frozenset({"test", "tests", "docs", "examples", "scripts", "benchmarks"})
"""Folders that some libraries install by mistake, and that nothing imports."""


def is_required(name: str) -> bool:
    """Return True for the name of a module of a required library; cheap for names that no installed module has."""
    folders = {str(Path(get_paths()[kind])) for kind in ("purelib", "platlib")}
    places = [place for place in sys.path if place in folders]
    if name in _COMMON or PathFinder.find_spec(name, places) is None:
        return False
    return name in _required_modules()


@cache
def _required_modules() -> frozenset[str]:
    """Return the top-level modules of the package's libraries, those of its extras included where they are installed."""
    modules: set[str] = set()
    seen: set[str] = set()
    pending = [_PACKAGE]
    while pending:
        library = pending.pop()
        if library in seen:
            continue
        seen.add(library)
        try:
            installed = distribution(library)
        except PackageNotFoundError:
            continue
        if library != _PACKAGE:
            modules.update(_top_level(str(file)) for file in installed.files or ())
        pending += [
            re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            for requirement in installed.requires or ()
            if library == _PACKAGE or "extra ==" not in requirement
        ]
    return frozenset(modules)


def _top_level(file: str) -> str:
    """Return the module of a library's file."""
    return file.split("/")[0].split(".")[0]
