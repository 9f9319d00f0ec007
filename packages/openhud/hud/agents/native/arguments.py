"""Parsing of a model's tool arguments."""

from __future__ import annotations

from typing import Any

from hud.trace import ToolResult


def parsed(arguments: dict[str, Any] | str) -> dict[str, Any] | ToolResult:
    """Return arguments as an object, or an error result for invalid ones."""
    if isinstance(arguments, dict):
        return arguments
    return ToolResult.of_text(
        f"The arguments must be one JSON object, not {arguments[:200]!r}.", is_error=True
    )
