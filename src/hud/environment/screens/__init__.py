"""Screens: a browser or a desktop of its own for each run.

`browser` and `desktop` are the parts; `box` is the sandbox that their programs live in.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hud.environment.screens.browser import Browser
    from hud.environment.screens.desktop import Desktop

__all__ = ["Browser", "Desktop"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"hud.environment.screens.{name.lower()}"), name)
    raise AttributeError(f"module 'hud.environment.screens' has no attribute {name!r}")
