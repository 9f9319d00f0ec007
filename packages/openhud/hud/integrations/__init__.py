"""Integrations with other trainers and environment libraries, by the names that users import.

`hud.integrations.NAME` is the module that the entry point NAME of the group `hud.integrations` names: the same module
object, so that a class has one identity under both names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from hud.plugs import plugs

GROUP = "hud.integrations"


class _Alias(Loader):
    """Loads a module by its own name, whatever name it is imported by."""

    def __init__(self, module: str) -> None:
        self._name = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._name)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # The import replaced it by the alias's.


class _Finder(MetaPathFinder):
    """Finds `hud.integrations.NAME`, and the modules below it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{GROUP}."):
            return None
        name, dot, inner = fullname.removeprefix(f"{GROUP}.").partition(".")
        point = plugs(GROUP).get(name)
        if point is None:
            return None
        return ModuleSpec(fullname, _Alias(f"{point.value}{dot}{inner}"), is_package=True)


# First: the finder of paths would load a module below an alias a second time, by the alias's name.
sys.meta_path.insert(0, _Finder())
