"""Base classes of tool-call formats and their parsers. Parsers do not raise, for any output of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hud.engine.chat.tool_calls.writing import Write
from hud.trace import ToolCall, ToolSpec

THINK, THOUGHT = "<think>", "</think>"


@dataclass(frozen=True)
class Parsed:
    """A parsed turn of a model."""

    content: str | None
    reasoning: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    malformed: bool = False
    """True if a tool call could not be parsed."""


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of text or of reasoning."""

    kind: Literal["text", "reasoning"]
    text: str


Piece = Said | ToolCall


class StrippedText:
    """Streamed text, stripped at both ends."""

    def __init__(self, kind: Literal["text", "reasoning"]) -> None:
        self.kind = kind
        self._begun = False
        self._space = ""

    def take(self, text: str) -> str:
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        buffered = self._space + text
        shown = buffered.rstrip()
        self._space = buffered[len(shown) :]
        return shown


class TurnParser:
    """Incremental parser of a turn. Calls are returned when complete."""

    _state: Callable[[bool], bool]
    """A parser state: reads from the buffer, `final` at the end of the text; returns True to call the next state, False to
    wait for text."""

    def __init__(self) -> None:
        self.malformed = False
        """True after a tool call that could not be parsed."""
        self._buffer = ""
        self._out: list[Piece] = []

    def take(self, text: str) -> list[Piece]:
        """Return the events that are determined after this text."""
        self._buffer += text
        return self._advance(False)

    def end(self) -> list[Piece]:
        """Return the remaining events at the end of the text."""
        return self._advance(True)

    def _advance(self, final: bool) -> list[Piece]:
        while self._state(final):
            pass
        out, self._out = self._out, []
        return out

    def _say(self, strip: StrippedText, text: str) -> None:
        shown = strip.take(text)
        if shown:
            self._out.append(Said(strip.kind, shown))


Mark = Callable[[str], str]
"""Returns a mark as a term of a Lark grammar: its token, if the tokenizer has one, or its text."""


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """A tool-call format."""

    names: tuple[str, ...]
    """The name in vLLM, then aliases (SGLang's)."""
    templates: tuple[tuple[str, ...], ...]
    """A chat template has this format if it contains all strings of one of these groups."""
    grammar: Callable[[Sequence[ToolSpec], Mark, bool], str]
    """Returns Lark rules, the first named `calls`, of a turn that calls one of the tools; of several where the flag is True."""
    write: Write
    """Returns the calls of a turn as text, for templates that write none."""
    preamble: Callable[[Mark], str] = lambda mark: ""
    """Returns Lark terms before a plain answer; empty if the answer begins the turn."""
    thinking: tuple[str, str] = (THINK, THOUGHT)
    """The marks around reasoning, which a prompt may open."""
    call_id: Callable[[str], str] = str
    """Returns a call's id in the template's form."""

    def recognizes(self, template: str) -> bool:
        """Return True if a chat template has this format."""
        return any(all(part in template for part in group) for group in self.templates)

    def parser(
        self, tools: Sequence[ToolSpec], *, opened: bool = False, calls: bool = True
    ) -> TurnParser:
        """Return a parser of one turn.

        `opened`: the prompt ended within reasoning. `calls=False`: tool calls are not parsed.
        """
        raise NotImplementedError

    def ends_reasoning(self, text: str, parsed: Parsed) -> bool:
        """Return True for a turn that ends reasoning it did not begin: some templates open it in the prompt.

        `parsed` is the turn read as one without. A closing mark in an argument of a call ends nothing.
        """
        raise NotImplementedError


def parse_output(
    text: str, format: ToolFormat, tools: Sequence[ToolSpec] = (), *, opened: bool = False
) -> Parsed:
    """Parse a whole turn. `opened`: the prompt ended within reasoning."""
    parsed = _parse(text, format, tools, opened=opened)
    if opened or not format.ends_reasoning(text, parsed):
        return parsed
    return _parse(text, format, tools, opened=True)


def _parse(text: str, format: ToolFormat, tools: Sequence[ToolSpec], *, opened: bool) -> Parsed:
    parser = format.parser(tools, opened=opened)
    texts = {"text": "", "reasoning": ""}
    calls = []
    for piece in [*parser.take(text), *parser.end()]:
        if isinstance(piece, Said):
            texts[piece.kind] += piece.text
        else:
            calls.append(piece)
    return Parsed(texts["text"] or None, texts["reasoning"] or None, calls, parser.malformed)
