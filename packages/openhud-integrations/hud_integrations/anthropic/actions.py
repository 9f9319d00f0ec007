"""Conversion of Claude's computer actions to arguments of `ComputerTool`.

Claude names an action for each button and each number of clicks, gives points as `coordinate`, keys as one text and
scrolling in clicks of the wheel. An unknown action is passed on, and rejected by the tool.
"""

from __future__ import annotations

from typing import Any

PIXELS_PER_CLICK = 100
MOST_REPEATS = 100

_CLICKS = {
    "left_click": ("left", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
}
_SAME = {
    "mouse_move": "move",
    "left_mouse_down": "mouse_down",
    "left_mouse_up": "mouse_up",
}
_DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
LOOKS = frozenset({"screenshot", "zoom"})
"""Actions with a screenshot as result."""


def our_actions(action: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the arguments of each call of `ComputerTool`."""
    if action in _CLICKS:
        button, count = _CLICKS[action]
        return [
            {
                "action": "click",
                **_point(arguments),
                "button": button,
                "count": count,
                **_held(arguments),
            }
        ]
    if action == "left_click_drag":
        path = [arguments.get("start_coordinate"), arguments.get("coordinate")]
        return [{"action": "drag", "path": path, **_held(arguments)}]
    if action == "key":
        keys = {"action": "key", "keys": combination(str(arguments.get("text", "")))}
        return [keys] * max(1, min(int(arguments.get("repeat") or 1), MOST_REPEATS))
    if action == "hold_key":
        keys = {"action": "hold_key", "keys": combination(str(arguments.get("text", "")))}
        return [{**keys, "seconds": arguments.get("duration", 1)}]
    if action == "scroll":
        return [_scroll(arguments)]
    if action == "wait":
        return [{"action": "wait", "seconds": arguments.get("duration", 1)}]
    if action in _SAME:
        return [{"action": _SAME[action], **_point(arguments)}]
    return [{"action": action, **arguments}]


def combination(text: str) -> list[str]:
    """Return the keys of `ctrl+shift+t`; a plus sign at the end is a key itself."""
    if len(text) <= 1:
        return [text]
    keys = [key for key in text.split("+") if key]
    return [*keys, "+"] if text.endswith("++") else keys


def _scroll(arguments: dict[str, Any]) -> dict[str, Any]:
    right, down = _DIRECTIONS.get(str(arguments.get("scroll_direction")), (0, 1))
    pixels = int(arguments.get("scroll_amount", 3)) * PIXELS_PER_CLICK
    return {
        "action": "scroll",
        **_point(arguments),
        "scroll_x": right * pixels,
        "scroll_y": down * pixels,
        **_held(arguments),
    }


def _point(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return `x` and `y`, or nothing if the mouse stays."""
    point = arguments.get("coordinate")
    if not isinstance(point, list) or len(point) != 2:
        return {}
    return {"x": point[0], "y": point[1]}


def _held(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the keys to hold during the action."""
    text = arguments.get("text")
    return {"keys": combination(text)} if isinstance(text, str) and text else {}
