"""What a template receives from its first `yield`."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from hud.trace import Trace

T = TypeVar("T")


class Answer(str, Generic[T]):
    """The agent's answer: a `str` that also carries how it came about.

    For a template with `returns=T`, `content` is the answer parsed as a `T`, or the raw text where it could
    not be parsed; otherwise it is the text.
    """

    trace: Trace
    """Everything the agent did: steps, tool calls, results, usage."""
    content: T | str
    raw: str

    def __new__(
        cls, raw: str, trace: Trace | None = None, content: T | str | None = None
    ) -> Answer[T]:
        answer = super().__new__(cls, raw)
        answer.raw = raw
        answer.trace = trace if trace is not None else Trace(content=raw)
        answer.content = raw if content is None else content
        return answer

    @property
    def parsed(self) -> bool:
        """True when `content` is the type that the template asked for, not the raw text."""
        return self.content is not self.raw


def parse_answer(raw: str, trace: Trace | None, returns: TypeAdapter[Any] | None) -> Answer[Any]:
    """Return the answer, parsed as JSON into the template's `returns` type where it has one."""
    if returns is None:
        return Answer(raw, trace)
    for parse in (returns.validate_json, returns.validate_python):
        try:
            return Answer(raw, trace, parse(raw))
        except ValidationError:
            continue
    return Answer(raw, trace)
