"""Screen of a human baseline: converts clicks on a picture and typed keys to actions of the computer tool."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hud.errors import UsageError
from hud.trace import ToolSpec

SCROLL_PIXELS = 400
_HOW: dict[str, dict[str, Any]] = {
    "click": {"action": "click"},
    "double": {"action": "click", "count": 2},
    "right": {"action": "click", "button": "right"},
    "move": {"action": "move"},
}
_PLAIN = ("screenshot", "back", "forward")


def screen_arguments(tool: ToolSpec, form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a computer action from form fields: `do`, and the fields that this action needs.
    A point is `x`, `y` in pixels of the screen, or `point.x`, `point.y` as sent by an image input of the browser.
    Raises `UsageError` for an invalid action.
    """
    do = str(form.get("do") or "click")
    if do in _PLAIN:
        return {"action": do}
    if do == "type":
        return {"action": "type", "text": str(form.get("text") or "")}
    if do == "key":
        keys = [key.strip() for key in str(form.get("keys") or "").split("+") if key.strip()]
        if not keys:
            raise UsageError("Name a key, such as Enter or ctrl+c.")
        return {"action": "key", "keys": keys}
    if do == "scroll":
        down = -SCROLL_PIXELS if form.get("way") == "up" else SCROLL_PIXELS
        return {"action": "scroll", "scroll_y": down}
    if do == "wait":
        return {"action": "wait", "seconds": 1}
    if do == "navigate":
        return {"action": "navigate", "url": str(form.get("url") or "").strip()}
    how = _HOW.get(str(form.get("how") or "click"))
    if do != "click" or how is None:
        raise UsageError(f"The screen has no action {do!r}.")
    return {**how, "x": _pixel(form, "x", tool), "y": _pixel(form, "y", tool)}


def _pixel(form: Mapping[str, Any], axis: str, tool: ToolSpec) -> int:
    coordinate = str(form.get(axis) or form.get(f"point.{axis}") or "")
    try:
        value = float(coordinate)
    except ValueError:
        value = math.nan
    most = tool.options.get("width" if axis == "x" else "height", math.inf)
    if not 0 <= value < most:
        raise UsageError("Click on the screen.")
    return int(value)
