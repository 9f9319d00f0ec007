"""What `tasks.grade` sends: the answer, and the trace that a grader of ours reads, as far as a frame holds it."""

from __future__ import annotations

from typing import Any

import orjson

from hud.trace import Trace, without_samples

_ROOM = 4096
"""What is around the parameters in a frame, generously."""
_LEFT_OUT = {"type": "text", "text": "(an image; the trace with its images is longer than a frame)"}


def grade_params(answer: str, trace: Trace | None, max_frame: int) -> dict[str, Any]:
    """Return the parameters; images are left out of a trace that is too long with them."""
    params: dict[str, Any] = {"answer": answer}
    if trace is None:
        return params
    # The tokens are the trainer's business; a grader reads what was said and done.
    samples = {"steps": {"__all__": without_samples()}}
    params["trace"] = trace.model_dump(mode="json", exclude_none=True, exclude=samples)
    if len(orjson.dumps(params, default=str)) > max_frame - _ROOM:
        params["trace"] = _without_images(params["trace"])
    return params


def _without_images(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_images(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "image":
        return _LEFT_OUT
    return {key: _without_images(item) for key, item in value.items()}
