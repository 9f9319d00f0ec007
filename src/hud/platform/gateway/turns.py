"""A turn taken apart while it is being written: reasoning, text and tool calls.

Says of a stream, piece by piece, what `engine.toolcalls.parse_output` says of the whole text. One difference
cannot be helped: a `</think>` that nothing opened turns what stands before it into reasoning, and by then a stream has
shown it as text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hud.engine.toolcalls import plain_calls, read_call
from hud.platform.gateway.stopping import held_back
from hud.trace import ToolCall

THINK, THOUGHT = "<think>", "</think>"
CALL, CALLED = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Said:
    """A piece of text or of reasoning."""

    kind: Literal["text", "reasoning"]
    text: str


Piece = Said | ToolCall


class TurnParser:
    """Reads one turn.

    `opened`: the prompt ended inside `<think>`. `calls=False`: nothing is read as a tool call.
    """

    def __init__(
        self, tools: Iterable[str] = (), *, opened: bool = False, calls: bool = True
    ) -> None:
        self.tools = frozenset(tools)
        self.calls = calls
        self.malformed = False
        self._state = self._reasoning if opened else self._start
        self._buffer = ""
        self._searched = 0
        self._text = _Stripped("text")
        self._thought = _Stripped("reasoning")
        self._out: list[Piece] = []

    def take(self, text: str) -> list[Piece]:
        """Return what is certain after this text."""
        self._buffer += text
        return self._advance(False)

    def end(self) -> list[Piece]:
        """Return what is left when no more text comes."""
        return self._advance(True)

    def _advance(self, final: bool) -> list[Piece]:
        while self._state(final):
            pass
        out, self._out = self._out, []
        return out

    # -- states: each returns True to go on with the next one, False to wait for more text ----------------

    def _start(self, final: bool) -> bool:
        text = self._buffer.lstrip()
        if text.startswith(THINK):
            self._go_on(self._reasoning, text[len(THINK) :])
            return True
        if text.startswith(THOUGHT):
            # Nothing was thought, and nothing shown yet.
            self._go_on(self._opening, text[len(THOUGHT) :])
            return True
        if not final and (THINK.startswith(text) or THOUGHT.startswith(text)):
            return False
        self._state = self._opening
        return True

    def _reasoning(self, final: bool) -> bool:
        at = self._buffer.find(THOUGHT)
        if at >= 0:
            self._say(self._thought, self._buffer[:at])
            self._go_on(self._opening, self._buffer[at + len(THOUGHT) :])
            return True
        return self._say_all_but(self._thought, THOUGHT, final)

    def _opening(self, final: bool) -> bool:
        """The first character of the answer decides whether the whole of it may be a call."""
        if not self.calls or not self.tools:
            self._state = self._content
            return True
        text = self._buffer.lstrip()
        if not text:
            return False
        self._state = self._maybe_calls if text[0] in "{[" else self._content
        return True

    def _maybe_calls(self, final: bool) -> bool:
        """Held to the end: only then is it known whether the answer is nothing but calls."""
        if self._buffer.find(CALL, max(0, self._searched - len(CALL))) >= 0:
            self._go_on(self._content, self._buffer)
            return True
        self._searched = len(self._buffer)
        if not final:
            return False
        calls = plain_calls(self._buffer, self.tools)
        self._out.extend(calls)
        self._go_on(self._content, "" if calls else self._buffer)
        return not calls

    def _content(self, final: bool) -> bool:
        if not self.calls:
            self._say(self._text, self._buffer)
            self._buffer = ""
            return False
        at = self._buffer.find(CALL)
        if at >= 0:
            self._say(self._text, self._buffer[:at])
            self._go_on(self._call, self._buffer[at + len(CALL) :])
            return True
        return self._say_all_but(self._text, CALL, final)

    def _call(self, final: bool) -> bool:
        """A call is told when it is complete: one that cannot be read must not have been begun."""
        at = self._buffer.find(CALLED, max(0, self._searched - len(CALLED)))
        self._searched = len(self._buffer)
        if at < 0 and not final:
            return False
        end = at if at >= 0 else len(self._buffer)
        call = read_call(self._buffer[:end])
        if call is None:
            self.malformed = True
        else:
            self._out.append(call)
        self._go_on(self._content, self._buffer[end + len(CALLED) :])
        return True

    # -- what they share --------------------------------------------------------------------------------

    def _go_on(self, state: object, buffer: str) -> None:
        self._state = state  # type: ignore[assignment]
        self._buffer = buffer
        self._searched = 0

    def _say(self, strip: _Stripped, text: str) -> None:
        shown = strip.take(text)
        if shown:
            self._out.append(Said(strip.kind, shown))

    def _say_all_but(self, strip: _Stripped, mark: str, final: bool) -> bool:
        """Say everything except what could begin `mark`."""
        keep = 0 if final else held_back(self._buffer, mark)
        end = len(self._buffer) - keep
        self._say(strip, self._buffer[:end])
        self._buffer = self._buffer[end:]
        return False


class _Stripped:
    """Text without white space at its two ends, as it comes."""

    def __init__(self, kind: Literal["text", "reasoning"]) -> None:
        self.kind = kind
        self._begun = False
        self._space = ""

    def take(self, text: str) -> str:
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        whole = self._space + text
        shown = whole.rstrip()
        self._space = whole[len(shown) :]
        return shown
