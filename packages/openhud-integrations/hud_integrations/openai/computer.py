"""OpenAI's computer tool, to and from the common vocabulary of computer actions.

The provider's tool has the screen, the mouse and the keyboard.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from hud.trace import ToolSpec

ComputerTool = Literal["computer", "computer_use_preview"]
WAIT_SECONDS = 1.0
_VERSION = re.compile(r"gpt-(\d+)(?:\.(\d+))?")
_FIRST_WITH_COMPUTER = (5, 4)
_BUTTONS = {"wheel": "middle"}
_KEYS = {
    "arrowdown": "down",
    "arrowleft": "left",
    "arrowright": "right",
    "arrowup": "up",
    "cmd": "meta",
    "command": "meta",
    "control": "ctrl",
    "del": "delete",
    "esc": "escape",
    "option": "alt",
    "return": "enter",
    "super": "meta",
    "win": "meta",
    " ": "space",
}
BLANK = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNg"
    "AAAAAgAB5Sfe/AAAAABJRU5ErkJggg=="
)
"""Placeholder for a missing screenshot, which the API requires."""


def tool_for(model: str) -> ComputerTool:
    """Return a model's kind of computer tool."""
    return "computer_use_preview" if "computer-use-preview" in model else "computer"


def known_tool(model: str) -> ComputerTool | None:
    """Return the computer tool by a model's name, None for unknown names."""
    version = _VERSION.match(model.rpartition("/")[2])
    knows = version is not None and (int(version[1]), int(version[2] or 0)) >= _FIRST_WITH_COMPUTER
    return tool_for(model) if knows or "computer-use" in model else None


def declaration(spec: ToolSpec, kind: ComputerTool) -> dict[str, Any]:
    """Return the provider's tool for a computer."""
    if kind == "computer":
        return {"type": "computer"}
    return {
        "type": "computer_use_preview",
        "display_width": spec.options.get("width", 1024),
        "display_height": spec.options.get("height", 768),
        "environment": spec.options.get("environment", "browser"),
    }


def actions_of(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments of a `computer_call`'s actions, in order."""
    actions = item.get("actions") or [item.get("action") or {"type": "screenshot"}]
    return [arguments_of(action) for action in actions]


def arguments_of(action: dict[str, Any]) -> dict[str, Any]:
    """Return one of the provider's actions in the common vocabulary."""
    kind = action.get("type", "screenshot")
    arguments: dict[str, Any] = {"action": kind}
    for name in ("x", "y", "scroll_x", "scroll_y", "text"):
        if action.get(name) is not None:
            arguments[name] = action[name]
    if action.get("keys"):
        arguments["keys"] = [key_of(key) for key in action["keys"]]
    if kind in ("click", "double_click"):
        button = action.get("button", "left")
        arguments |= {"action": "click", "button": _BUTTONS.get(button, button)}
        if kind == "double_click":
            arguments["count"] = 2
    elif kind == "drag":
        arguments["path"] = [[point["x"], point["y"]] for point in action.get("path") or []]
    elif kind == "keypress":
        arguments["action"] = "key"
    elif kind == "wait":
        arguments["seconds"] = WAIT_SECONDS
    return arguments


def key_of(name: str) -> str:
    """Return a key's name in the common vocabulary."""
    lowered = name.lower()
    return _KEYS.get(lowered, lowered if len(name) > 1 else name)
