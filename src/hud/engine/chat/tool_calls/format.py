"""The interface of a tool-call format, and the reading of a whole turn with it. Nothing here raises, whatever a model wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from hud.trace import ToolCall, ToolSpec

THINK, THOUGHT = "<think>", "</think>"


@dataclass(frozen=True)
class Parsed:
    """One turn of a model."""

    content: str | None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    malformed: bool = False
    """True when there was a tool call that could not be read."""


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of text or of reasoning."""

    kind: Literal["text", "reasoning"]
    text: str


Piece = Said | ToolCall


class TurnParser(Protocol):
    """Reads one turn while it is written. A call is returned when it is complete, so that none is begun in vain."""

    malformed: bool
    """True once a tool call could not be read."""

    def take(self, text: str) -> list[Piece]:
        """Return what is certain after this text."""
        ...

    def end(self) -> list[Piece]:
        """Return the rest when no more text comes."""
        ...


Mark = Callable[[str], str]
"""Returns a mark as a term of a Lark grammar: the token that the tokenizer has for it, or its text."""


class ToolFormat(Protocol):
    """One way in which models write tool calls."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name in vLLM, then further names (SGLang's)."""
        ...

    @property
    def thinking(self) -> tuple[str, str]:
        """The marks around reasoning, which a prompt may open for the model."""
        ...

    def recognizes(self, template: str) -> bool:
        """True where a chat template writes tool calls this way."""
        ...

    def parser(
        self, tools: Sequence[ToolSpec], *, opened: bool = False, calls: bool = True
    ) -> TurnParser:
        """Return a parser of one turn.

        `opened`: the prompt ended inside reasoning. `calls=False`: nothing is read as a tool call.
        """
        ...

    def call_id(self, id: str) -> str:
        """Return a call's id in the form that the template takes."""
        ...

    def grammar(self, tools: Sequence[ToolSpec], mark: Mark, *, many: bool) -> str:
        """Return Lark rules, the first named `calls`, of a turn that calls one of `tools`, or several with `many`."""
        ...

    def preamble(self, mark: Mark) -> str:
        """Return Lark terms that precede a plain answer; empty where it begins the turn."""
        ...


def parse_output(
    text: str, format: ToolFormat, tools: Sequence[ToolSpec] = (), *, opened: bool = False
) -> Parsed:
    """Take a whole turn apart. `opened`: the prompt ended inside reasoning."""
    think, thought = format.thinking
    # A closing mark that nothing opened: some templates open reasoning in the prompt.
    opened = opened or (thought in text and not text.lstrip().startswith(think))
    parser = format.parser(tools, opened=opened)
    pieces = [*parser.take(text), *parser.end()]
    said = {"text": "", "reasoning": ""}
    calls = []
    for piece in pieces:
        if isinstance(piece, Said):
            said[piece.kind] += piece.text
        else:
            calls.append(piece)
    return Parsed(said["text"] or None, said["reasoning"] or None, calls, parser.malformed)
