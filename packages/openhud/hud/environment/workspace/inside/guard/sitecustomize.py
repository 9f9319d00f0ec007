"""For the environment's own commands: import the standard library, and pytest with what it imports, from their installed paths only.

`python3 -m unittest` searches the current folder first, which the agent wrote: its `unittest.py` would be executed instead
of the library's, and so would any module with the name of a check's import, or a plugin of pytest that a distribution's
metadata in that folder names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

TYPE_CHECKING = False  # Importing `typing` would add 15 ms to the start of every program.
if TYPE_CHECKING:
    from typing import Any

_PYTEST = "pytest _pytest pluggy iniconfig packaging pygments py exceptiongroup tomli colorama importlib_metadata"
GUARDED = frozenset({*sys.stdlib_module_names, *_PYTEST.split()})
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


class Paths(PathFinder):
    """Finder that lists the distributions of installed and declared folders; one of another folder is found by its name only."""

    @staticmethod
    def find_distributions(context: Any = None) -> Any:
        if context is not None and context.name is None:
            listed = [folder for folder in context.path if folder in (*INSTALLED, *DECLARED)]
            context = type(context)(path=listed)
        return PathFinder.find_distributions(context)


place = sys.meta_path.index(PathFinder)
sys.meta_path[place : place + 1] = [Installed, Paths]
