"""Screens: a separate browser or desktop for each run.

`browser` and `desktop` are the parts; `screen_sandbox` is the sandbox of their programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud.environment.screens.browser import Browser
    from hud.environment.screens.desktop import Desktop

__all__ = ["Browser", "Desktop"]

__getattr__ = lazy(__name__, {"Browser": ".browser", "Desktop": ".desktop"})
