"""Size limits of answers and tool arguments, for control channel, graders and store."""

from __future__ import annotations

from typing import Any

from hud import exact_json
from hud.errors import AgentFault

MAX_ANSWER_BYTES = 4 << 20
"""Longest answer, in bytes of UTF-8 JSON: answer and trace must fit one frame of the control channel."""
MAX_ARGUMENT_BYTES = 8 << 20
"""Longest arguments of one tool call, in bytes of UTF-8 JSON."""
MAX_ARGUMENT_DEPTH = 200
"""Deepest nesting of a tool call's arguments, in lists and objects."""
_NESTING = (dict, list, tuple)


def check_answer(answer: Any, limit: int | None = MAX_ANSWER_BYTES) -> str | None:
    """Return an agent's answer; raises `AgentFault` if it is neither text nor None, or cannot be transmitted.

    `limit` is in bytes; None for an answer that was already received in a control frame.
    """
    if answer is None:
        return None
    if not isinstance(answer, str):
        raise AgentFault(
            f"The answer is of type {type(answer).__name__}; an answer is text. Set run.trace.content to a str "
            "(json.dumps makes one of a list or a dict)."
        )
    try:
        size = len(exact_json.dumps(answer))
    except TypeError:
        raise AgentFault(
            "The answer is no Unicode text: half of a surrogate pair is in it. "
            'Encode it first, for example with errors="replace".'
        ) from None
    if limit is not None and size > limit:
        raise AgentFault(
            f"The answer has {size:,} bytes; an answer has at most {limit:,}. "
            "Write large results to a file."
        )
    return answer


def check_arguments(name: str, arguments: Any) -> None:
    """Raise `AgentFault` for tool arguments nested too deep or too long to be transmitted."""
    if isinstance(arguments, str):
        size = len(arguments.encode("utf-8", "surrogatepass"))
    else:
        if _deeper(arguments, MAX_ARGUMENT_DEPTH):
            raise AgentFault(
                f"The arguments of the call of {name!r} are nested deeper than {MAX_ARGUMENT_DEPTH} levels."
            )
        size = _size(arguments)
    if size > MAX_ARGUMENT_BYTES:
        raise AgentFault(
            f"The arguments of the call of {name!r} have {size:,} bytes; they have at most {MAX_ARGUMENT_BYTES:,}. "
            "Write large data to a file."
        )


def _deeper(value: Any, depth: int) -> bool:
    """True where `value` has more than `depth` levels of lists and objects."""
    level = [value] if isinstance(value, _NESTING) else []
    for _ in range(depth):
        if not level:
            return False
        level = [
            part
            for nested in level
            for part in (nested.values() if isinstance(nested, dict) else nested)
            if isinstance(part, _NESTING)
        ]
    return bool(level)


def _size(arguments: Any) -> int:
    try:
        return len(exact_json.dumps(arguments, default=str, option=exact_json.OPT_NON_STR_KEYS))
    except TypeError:  # A lone surrogate, or a number beyond 64 bits: both can be transmitted.
        return len(str(arguments))
