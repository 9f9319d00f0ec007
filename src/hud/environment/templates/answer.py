"""`Answer`: the value that a template receives from its first `yield`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from hud.trace import Trace

T = TypeVar("T")

_FENCE = re.compile(r"```\w*$")
"""End of a line that opens a block of code, in which models like to wrap their JSON."""


class _Unparsed:
    """Stands for content that there is none of: None is content, where a template asks for `int | None`."""


_UNPARSED = _Unparsed()


class Answer(str, Generic[T]):
    """The agent's answer: a `str` that also carries how it came about.

    For a template with `returns=T`, `content` is the answer parsed as a `T`, or the raw text where it could
    not be parsed; otherwise it is the text.
    """

    trace: Trace
    """Everything the agent did: steps, tool calls, results, usage."""
    content: T | str
    raw: str
    parsed: bool
    """True when `content` is of the type that the template asked for, not the raw text."""

    def __new__(
        cls, raw: str, trace: Trace | None = None, content: T | str | _Unparsed = _UNPARSED
    ) -> Answer[T]:
        answer = super().__new__(cls, raw)
        answer.raw = raw
        answer.trace = trace if trace is not None else Trace(content=raw)
        answer.parsed = not isinstance(content, _Unparsed)
        answer.content = raw if isinstance(content, _Unparsed) else content
        return answer


def parse_answer(raw: str, trace: Trace | None, returns: TypeAdapter[Any] | None) -> Answer[Any]:
    """Return the answer, parsed into the template's `returns` type where it has one.

    JSON counts, also as the only block of code among other words, and so does the plain text.
    """
    if returns is None:
        return Answer(raw, trace)
    blocks = _fenced(raw)
    attempts: list[tuple[Callable[[str], Any], str]] = [
        (returns.validate_json, raw),
        (returns.validate_python, raw),
        *((returns.validate_json, block) for block in blocks if len(blocks) == 1),
    ]
    for parse, text in attempts:
        try:
            return Answer(raw, trace, parse(text))
        except ValidationError:
            continue
    return Answer(raw, trace)


def _fenced(text: str) -> list[str]:
    """Return the blocks of code in `text`, line by line: in linear time, whatever an agent wrote."""
    blocks: list[str] = []
    inside: list[str] | None = None
    for line in text.split("\n"):
        if inside is None:
            inside = [] if _FENCE.search(line.rstrip()[-80:]) else None
        elif line.lstrip().startswith("```"):
            blocks.append("\n".join(inside))
            inside = None
        else:
            inside.append(line)
    return blocks
