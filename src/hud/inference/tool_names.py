"""Names of tools as a provider takes them.

Servers name tools as they like (`files.read`, `搜索`); providers take few characters and not too many of them.
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
    """Tool declarations of one request, and the names that stand for our tools in it and in its answer."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    """Declarations as the dialect writes them."""
    wire: dict[str, str] = field(default_factory=dict)
    """A tool's name on the wire, by ours."""
    named: dict[str, str] = field(default_factory=dict)
    """Our tool's name, by its name on the wire."""

    def name(self, ours: Iterable[str], longest: int, taken: Iterable[str] = ()) -> None:
        """Name functions on the wire, in at most `longest` characters; `taken` are names of other tools."""
        self.wire = wire_names(ours, longest, taken)
        self.named = {wire: name for name, wire in self.wire.items()}

    def navigator(self, computer: str) -> ToolSpec:
        """Return the function by which a browser goes to an address, for the tool `computer`, under a name not taken.

        An address is not on the screen, which is all that providers' own computer tools know.
        """
        name = "navigate_browser"
        while name in self.named:
            name += "_"
        self.named[name] = computer
        return ToolSpec(name=name, description=_NAVIGATION, parameters=_NAVIGATE)


def wire_names(names: Iterable[str], longest: int, taken: Iterable[str] = ()) -> dict[str, str]:
    """Return the name on the wire of each name: itself where that is possible, and each only once.

    `taken` are names on the wire that something else has already.
    """
    names = list(names)
    used = set(taken)
    found: dict[str, str] = {}
    # Those that can keep their name go first, so that no changed one takes it from them.
    for name in sorted(names, key=lambda name: _plain(name, longest) != name):
        plain = _plain(name, longest)
        number, wire = 2, plain
        while wire in used:
            ending = f"_{number}"
            wire, number = plain[: longest - len(ending)] + ending, number + 1
        used.add(wire)
        found[name] = wire
    return found


def _plain(name: str, longest: int) -> str:
    plain = _OTHER.sub("_", name)[:longest]
    # Gemini wants a letter or an underscore first, and the others do not mind.
    return plain if re.match(r"[a-zA-Z_]", plain) else f"_{plain}"[:longest]
