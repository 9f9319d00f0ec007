"""What must be written, where a request leaves no choice: a tool call, or JSON."""

from __future__ import annotations

from typing import Any

from hud.errors import UsageError
from hud.platform.gateway.formats import Format
from hud.platform.gateway.requests import GenerationRequest


def grammar_of(format: Format, request: GenerationRequest) -> dict[str, Any]:
    """Return the fields of a `TokenRequest` that bind what may be drawn; none where anything may."""
    del format
    if request.tool_choice.mode == "required":
        raise UsageError(
            "tool_choice can only be 'auto' or 'none' for this model: this server draws its tokens freely."
        )
    if request.format is not None:
        raise UsageError(
            "response_format can only be 'text' for this model: this server draws its tokens freely."
        )
    return {}
