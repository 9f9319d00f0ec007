"""Parameters of `tasks.grade`: the answer, and as much of the trace as a frame holds, for graders."""

from __future__ import annotations

from typing import Any

from hud import exact_json
from hud.trace import Trace, without_samples
from hud.trace.json_values import as_text, jsonable

_ROOM = 4096
"""Maximum bytes of a frame besides its parameters."""
_LONGEST_TEXTS = (65_536, 4_096, 256)
"""Lengths, in characters, to which the texts of an oversized trace are cut, tried in order until it fits."""
_LEFT_OUT = {"type": "text", "text": "(an image; the trace with its images is longer than a frame)"}


def grade_params(answer: str, trace: Trace | None, max_frame: int) -> dict[str, Any]:
    """Return the parameters; from an oversized trace images are omitted first, then the ends of long texts."""
    params: dict[str, Any] = {"answer": answer}
    if trace is None:
        return params
    # Graders do not need tokens.
    samples = {"steps": {"__all__": without_samples()}}
    try:
        params["trace"] = trace.model_dump(
            mode="json", exclude_none=True, exclude=samples, fallback=as_text
        )
        size = _size(params)
    except (ValueError, TypeError):  # Too deeply nested, or invalid Unicode.
        params["trace"] = jsonable(trace.model_dump(exclude_none=True, exclude=samples))
        size = _size(params)
    if size <= max_frame - _ROOM:
        return params
    params["trace"] = _without_images(params["trace"])
    for longest in _LONGEST_TEXTS:
        if _size(params) <= max_frame - _ROOM:
            return params
        params["trace"] = _shortened(params["trace"], longest)
    if _size(params) > max_frame - _ROOM:
        # Too many steps even for shortened texts: the answer is graded without a trace.
        params["trace"] = {**params["trace"], "steps": [], "extra": {"steps": "left out: too long"}}
    return params


def _size(params: dict[str, Any]) -> int:
    return len(exact_json.dumps(params))


def _shortened(value: Any, longest: int) -> Any:
    """Return `value` with every text cut to `longest` characters; the answer is outside of the trace and stays whole."""
    if isinstance(value, str):
        return value if len(value) <= longest else f"{value[:longest]}… [{len(value):,} characters]"
    if isinstance(value, list):
        return [_shortened(item, longest) for item in value]
    if isinstance(value, dict):
        return {key[:longest]: _shortened(item, longest) for key, item in value.items()}
    return value


def _without_images(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_images(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "image":
        return _LEFT_OUT
    return {key: _without_images(item) for key, item in value.items()}
