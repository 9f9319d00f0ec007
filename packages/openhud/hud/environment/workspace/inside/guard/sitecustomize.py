"""For the environment's own commands: import the standard library and pytest from their installed paths only.

`python3 -m unittest` searches the current folder first, which the agent wrote: its `unittest.py` would be executed instead
of the library's, and so would any module with the name of a check's import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

GUARDED = frozenset({*sys.stdlib_module_names, "pytest", "_pytest", "pluggy", "iniconfig"})
DECLARED = os.environ.get("PYTHONPATH", "").split(os.pathsep)
INSTALLED = tuple(folder for folder in sys.path if folder and folder not in DECLARED)
"""The search path without the current folder, a script's folder and `PYTHONPATH`."""


class Installed:
    """Finder of guarded modules."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None and name in GUARDED:
            return PathFinder.find_spec(name, INSTALLED, target)
        return None


sys.meta_path.insert(sys.meta_path.index(PathFinder), Installed)
