"""`Answer`: the value that a template receives from its first `yield`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from hud.trace import Trace

T = TypeVar("T")
Played = Trace | Callable[[], Trace] | None
"""A run's trace, or a function that returns it; None without any."""

_FENCE = re.compile(r"```\w*$")
"""End of the opening line of a code block, as models wrap their JSON."""


class _Unparsed:
    """Marker of missing content: None is valid content for `int | None`."""


_UNPARSED = _Unparsed()


class Answer(str, Generic[T]):
    """The agent's answer: a `str` with its parsed content and trace.

    For a template with `returns=T`, `content` is the answer parsed as a `T`, or the raw text if it could not be parsed;
    otherwise it is the text.
    """

    content: T | str
    raw: str
    parsed: bool
    """True if `content` has the template's `returns` type, not the raw text."""
    _trace: Played

    def __new__(
        cls, raw: str, trace: Played = None, content: T | str | _Unparsed = _UNPARSED
    ) -> Answer[T]:
        answer = super().__new__(cls, raw)
        answer.raw = raw
        answer._trace = trace
        answer.parsed = not isinstance(content, _Unparsed)
        answer.content = raw if isinstance(content, _Unparsed) else content
        return answer

    @property
    def trace(self) -> Trace:
        """The run's trace: steps, tool calls, results, usage; parsed when it is first read."""
        if self._trace is None:
            self._trace = Trace(content=self.raw)
        elif not isinstance(self._trace, Trace):
            self._trace = self._trace()
        return self._trace


def parse_answer(raw: str, trace: Played, returns: TypeAdapter[Any] | None) -> Answer[Any]:
    """Return the answer, parsed as the template's `returns` type, if it has one.

    Accepted forms: JSON, JSON in the text's only code block, and plain text.
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
    """Return the code blocks in `text`, in linear time for any input."""
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
