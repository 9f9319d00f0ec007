"""For the environment's own commands: modules of Python's library, and pytest, come from where they are installed.

`python3 -m unittest` searches the current folder first, which is the agent's: its `unittest.py` would be executed in
place of the library's, and so would any module of a name that a check imports.
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
"""The search path before the current folder, or that of a script, is put on it, and without what a variable adds."""


class Installed:
    """Finds guarded modules."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is None and name in GUARDED:
            return PathFinder.find_spec(name, INSTALLED, target)
        return None


sys.meta_path.insert(sys.meta_path.index(PathFinder), Installed)
