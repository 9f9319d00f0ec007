"""What is recorded, as JSON. Whatever a tool, an agent or a grader came up with, it is recorded.

What JSON has no form for (an object in a state, half a surrogate pair, an endless nest) is written as text
that says what it was: a recording that fails would fail the run.
"""

from __future__ import annotations

from typing import Any

import orjson
from pydantic_core import PydanticSerializationError

from hud.trace import AgentStep, Step, SubagentStep, without_samples

_DEEPEST = 200
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_TOKENS = {
    "prompt_token_ids",
    "output_token_ids",
    "output_logprobs",
    "checkpoint",
    "swaps",
    "temperature",
}
"""Fields of a sample that have columns of their own."""


def encode_json(value: Any) -> bytes:
    """Return plain data as JSON."""
    try:
        return orjson.dumps(value, default=_as_text, option=_OPTIONS)
    except TypeError:  # orjson's errors are all of this kind.
        return orjson.dumps(_plain(value), option=_OPTIONS)


def encode_step(step: Step) -> bytes:
    """Return a step as JSON, without its tokens."""
    exclude: Any = None
    if isinstance(step, AgentStep) and step.sample is not None:
        exclude = {"sample": _TOKENS if step.sample.prompt_chunks is not None else True}
    elif isinstance(step, SubagentStep):
        # The nested run is recorded as a run of its own, tokens and all.
        exclude = without_samples()
    try:
        return step.__pydantic_serializer__.to_json(
            step, exclude_none=True, exclude=exclude, fallback=_as_text
        )
    except PydanticSerializationError:
        fields = step.__pydantic_serializer__.to_python(
            step, exclude_none=True, exclude=exclude, by_alias=True
        )
        return orjson.dumps(_plain(fields), option=_OPTIONS)


def _as_text(value: Any) -> Any:
    """A value that JSON has no form for."""
    item = getattr(value, "item", None)  # NumPy's scalars, and tensors of one element.
    if callable(item) and getattr(value, "ndim", 1) == 0:
        return item()
    return repr(value)


def _plain(value: Any, depth: int = 0) -> Any:
    """Return `value` as what orjson certainly writes."""
    if depth > _DEEPEST:
        return "…"
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_plain(str(key)): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, bool | float | None):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else float(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    isoformat = getattr(value, "isoformat", None)
    return isoformat() if callable(isoformat) else _plain(_as_text(value), depth + 1)
