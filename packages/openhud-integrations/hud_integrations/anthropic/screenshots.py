"""Scaling of screenshots for Claude, and of its coordinates back to the screen.

The API scales large images down, and the model's coordinates refer to the scaled image
(https://platform.claude.com/docs/en/build-with-claude/vision-coordinates).
"""

from __future__ import annotations

from typing import Any

Size = tuple[int, int]

_PATCH = 28
_PLACES = ("coordinate", "start_coordinate", "region")


def seen_size(size: Size, *, sharp: bool) -> Size:
    """Return the scaled size of an image of `size`; `sharp` are models since 4.7."""
    edge, tokens = (2576, 4784) if sharp else (1568, 1568)
    width, height = size
    longest = max(size)
    for long in range(longest, 0, -1):
        seen = max(1, round(width * long / longest)), max(1, round(height * long / longest))
        across, along = -(-seen[0] // _PATCH), -(-seen[1] // _PATCH)
        if max(across, along) * _PATCH <= edge and across * along <= tokens:
            return seen
    return size


def on_screen(arguments: dict[str, Any], seen: Size, size: Size) -> dict[str, Any]:
    """Return an action's arguments with points in screen pixels instead of image pixels."""
    if seen == size:
        return arguments
    return {
        name: _moved(value, seen, size) if name in _PLACES else value
        for name, value in arguments.items()
    }


def _moved(point: Any, seen: Size, size: Size) -> Any:
    """Return x and y in turn, scaled to the screen; any other value unchanged."""
    if not isinstance(point, list) or not all(
        isinstance(coordinate, int | float) for coordinate in point
    ):
        return point
    return [
        min(round(coordinate * size[index % 2] / seen[index % 2]), size[index % 2])
        for index, coordinate in enumerate(point)
    ]
