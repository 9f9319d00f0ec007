"""Conversion of Gemini's computer actions to arguments of `ComputerTool`.

Gemini has a function for each action, and points on a grid of 1000 by 1000. There are two sets of functions, before and
since version 3.5, distinguished by names.
"""

from __future__ import annotations

import re
from typing import Any

GRID = 1000
_SCROLL_PIXELS = 300
_SCROLL_GRID = 800
_CLICKS = {
    "click": ("left", 1),
    "click_at": ("left", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
    "middle_click": ("middle", 1),
    "right_click": ("right", 1),
}
_SAME = {
    "move": "move",
    "hover_at": "move",
    "mouse_down": "mouse_down",
    "mouse_up": "mouse_up",
    "go_back": "back",
    "go_forward": "forward",
    "take_screenshot": "screenshot",
    # The browser is already open.
    "open_web_browser": "screenshot",
}
_DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
ACTIONS = frozenset(
    {
        *_CLICKS,
        *_SAME,
        "drag_and_drop",
        "hotkey",
        "key_combination",
        "navigate",
        "press_key",
        "scroll",
        "scroll_at",
        "scroll_document",
        "type",
        "type_text_at",
        "wait",
        "wait_5_seconds",
    }
)
"""Functions that are actions of the computer."""

LEGACY_EXCLUDED = ("search",)
"""Unsupported: it opens a search engine, and environments may have no internet access."""
LEGACY_BROWSER_ONLY = ("open_web_browser", "go_back", "go_forward", "navigate")
EXCLUDED = ("key_down", "key_up")
"""Unsupported: `ComputerTool` presses keys together or holds them for a time, but has no action to leave a key down."""


def our_actions(
    name: str, arguments: dict[str, Any], size: tuple[int, int]
) -> list[dict[str, Any]]:
    """Return the arguments of each call of `ComputerTool`.

    `size` is the screen's width and height.
    """
    point = _point(arguments, "x", "y", size)
    if name in _CLICKS:
        button, count = _CLICKS[name]
        return [{"action": "click", **point, "button": button, "count": count}]
    if name in _SAME:
        return [{"action": _SAME[name], **point}]
    if name == "type":
        return _typed(arguments, enter=False)
    if name == "type_text_at":
        return _typed_at(point, arguments)
    if name in ("press_key", "hotkey", "key_combination"):
        keys = arguments.get("keys", arguments.get("key", ""))
        return [{"action": "key", "keys": _keys(keys)}]
    if name in ("scroll", "scroll_at", "scroll_document"):
        return [_scroll(name, point, arguments, size)]
    if name == "drag_and_drop":
        return [_drag(arguments, size)]
    if name in ("wait", "wait_5_seconds"):
        seconds = 5 if name == "wait_5_seconds" else arguments.get("seconds", 1)
        return [{"action": "wait", "seconds": seconds}]
    return [{"action": name, **arguments}]


def _typed(arguments: dict[str, Any], *, enter: bool) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [{"action": "type", "text": str(arguments.get("text", ""))}]
    if arguments.get("press_enter", enter):
        steps.append({"action": "key", "keys": ["Enter"]})
    return steps


def _typed_at(point: dict[str, int], arguments: dict[str, Any]) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [{"action": "click", **point, "button": "left", "count": 1}]
    if arguments.get("clear_before_typing", True):
        steps.append({"action": "key", "keys": ["ctrl", "a"]})
        steps.append({"action": "key", "keys": ["Backspace"]})
    return steps + _typed(arguments, enter=True)


def _keys(value: Any) -> list[str]:
    """Return the keys of a list, or of a text such as `Control+Shift+T`."""
    if isinstance(value, list):
        return [str(key) for key in value]
    text = str(value)
    if len(text) <= 1:
        return [text]
    keys = [key.strip() for key in text.split("+") if key.strip()]
    return [*keys, "+"] if re.search(r"\+\s*\+\s*$", text) else keys


def _scroll(
    name: str, point: dict[str, int], arguments: dict[str, Any], size: tuple[int, int]
) -> dict[str, Any]:
    right, down = _DIRECTIONS.get(str(arguments.get("direction")), (0, 1))
    if name == "scroll":
        across = along = int(arguments.get("magnitude_in_pixels") or _SCROLL_PIXELS)
    else:
        share = int(arguments.get("magnitude") or _SCROLL_GRID)
        across, along = share * size[0] // GRID, share * size[1] // GRID
    if name == "scroll_document":
        point = {"x": size[0] // 2, "y": size[1] // 2}
    return {"action": "scroll", **point, "scroll_x": right * across, "scroll_y": down * along}


def _drag(arguments: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    if "start_x" in arguments:
        start, end = (
            _point(arguments, "start_x", "start_y", size),
            _point(arguments, "end_x", "end_y", size),
        )
    else:
        start = _point(arguments, "x", "y", size)
        end = _point(arguments, "destination_x", "destination_y", size)
    return {"action": "drag", "path": [[point.get("x"), point.get("y")] for point in (start, end)]}


def _point(arguments: dict[str, Any], x: str, y: str, size: tuple[int, int]) -> dict[str, int]:
    """Return a point of the grid in pixels, or nothing without one."""
    across, along = arguments.get(x), arguments.get(y)
    if not isinstance(across, int | float) or not isinstance(along, int | float):
        return {}
    return {
        "x": min(int(across * size[0] / GRID), size[0] - 1),
        "y": min(int(along * size[1] / GRID), size[1] - 1),
    }
