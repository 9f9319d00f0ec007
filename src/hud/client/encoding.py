"""What is recorded, as JSON. Whatever a tool, an agent or a grader came up with, it is recorded.

What JSON has no form for (an object in a state, half a surrogate pair, an endless nest) is written as text
that says what it was: a recording that fails would fail the run.
"""

from __future__ import annotations

from typing import Any

import orjson
from pydantic_core import PydanticSerializationError

from hud.trace import AgentStep, Step, SubagentStep, without_samples
from hud.trace.json_values import as_text, jsonable

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
        return orjson.dumps(value, default=as_text, option=_OPTIONS)
    except TypeError:  # orjson's errors are all of this kind.
        return orjson.dumps(jsonable(value), option=_OPTIONS)


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
            step, exclude_none=True, exclude=exclude, fallback=as_text
        )
    except PydanticSerializationError:
        fields = step.__pydantic_serializer__.to_python(
            step, exclude_none=True, exclude=exclude, by_alias=True
        )
        return orjson.dumps(jsonable(fields), option=_OPTIONS)
