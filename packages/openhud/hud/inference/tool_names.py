"""Names of tools, converted to a provider's rules.

Tool names are arbitrary (`files.read`, `搜索`); providers limit their characters and length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hud.trace import ToolSpec

_NAVIGATION = "Open an address in the browser on the screen, or go back or forward in it."
_NAVIGATE = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": ["navigate", "back", "forward"]},
        "url": {"type": "string", "description": "Where to go; for `navigate` only."},
    },
    "required": ["action"],
}
_OTHER = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass
class DeclaredTools:
    """Tool declarations of a request, and the mapping of tool names to those of the request."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    """Declarations in the dialect's format."""
    wire: dict[str, str] = field(default_factory=dict)
    """The request's name of a tool, by its original name."""
    named: dict[str, str] = field(default_factory=dict)
    """The original name of a tool, by the request's name."""

    def name(self, ours: Iterable[str], longest: int, taken: Iterable[str] = ()) -> None:
        """Set the request's function names, of at most `longest` characters; `taken` are names of other tools."""
        self.wire = wire_names(ours, longest, taken)
        self.named = {wire: name for name, wire in self.wire.items()}

    def navigator(self, computer: str) -> ToolSpec:
        """Return the function that opens a URL in the browser of the tool `computer`, under a unique name.

        Providers' native computer tools have screen actions only, without navigation.
        """
        name = "navigate_browser"
        while name in self.named:
            name += "_"
        self.named[name] = computer
        return ToolSpec(name=name, description=_NAVIGATION, parameters=_NAVIGATE)


def wire_names(names: Iterable[str], longest: int, taken: Iterable[str] = ()) -> dict[str, str]:
    """Return the request's name for each name: unchanged if possible, and unique.

    `taken` are names in use.
    """
    names = list(names)
    used = set(taken)
    assigned: dict[str, str] = {}
    # Valid names are assigned first, so that no changed name takes them.
    for name in sorted(names, key=lambda name: _plain(name, longest) != name):
        plain = _plain(name, longest)
        number, wire = 2, plain
        while wire in used:
            ending = f"_{number}"
            wire, number = plain[: longest - len(ending)] + ending, number + 1
        used.add(wire)
        assigned[name] = wire
    return assigned


def _plain(name: str, longest: int) -> str:
    plain = _OTHER.sub("_", name)[:longest]
    # Some providers require a letter or an underscore first; the others accept it.
    return plain if re.match(r"[a-zA-Z_]", plain) else f"_{plain}"[:longest]
