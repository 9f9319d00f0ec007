"""Formats with tool calls between marks, or as the whole turn, and their parser.

A turn is reasoning, then text and calls. Streamed results equal those of the whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hud.engine.chat.tool_calls.format import Parsed, StrippedText, ToolFormat, TurnParser
from hud.trace import ToolCall, ToolSpec

MOST_ENDS = 16
"""Maximum number of marks tried as the end of an unparsable call: a mark may be in a string of its arguments."""

Read = Callable[[str, str, Sequence[ToolSpec]], list[ToolCall] | None]
"""Returns the calls between two marks, given the opening mark, the text behind it and the tools; None: unreadable."""
ReadWhole = Callable[[str, Sequence[ToolSpec]], list[ToolCall] | None]
"""Returns the calls of a whole turn, None for text."""


@dataclass(frozen=True, kw_only=True)
class MarkedFormat(ToolFormat):
    """A format described by its marks."""

    blocks: tuple[tuple[str, str | None], ...] = ()
    """Marks before and after calls; None: up to the next opening mark, or the end of the turn."""
    read: Read = lambda mark, text, tools: None
    read_whole: ReadWhole | None = None
    """Parser of a turn without marks that begins with `whole_starts`, if tools were given."""
    whole_starts: str = ""
    silent: tuple[str, ...] = ()
    """Marks around groups of calls, removed from the text."""

    def parser(
        self, tools: Sequence[ToolSpec], *, opened: bool = False, calls: bool = True
    ) -> MarkedTurn:
        return MarkedTurn(self, tools, opened=opened, calls=calls)

    def ends_reasoning(self, text: str, parsed: Parsed) -> bool:
        think, thought = self.thinking
        if text.lstrip().startswith(think) or thought not in text:
            return False
        if thought in (parsed.content or ""):
            return True
        # A mark in text that is no call: reasoning may name the marks of calls.
        begins = (*(begin for begin, _ in self.blocks), *self.silent)
        return parsed.malformed and not text.lstrip().startswith(begins)


class MarkedTurn(TurnParser):
    """Parser of a turn of a `MarkedFormat`."""

    def __init__(
        self, format: MarkedFormat, tools: Sequence[ToolSpec], *, opened: bool, calls: bool
    ) -> None:
        super().__init__()
        self.format = format
        self.tools = tools
        self.calls = calls
        self._begins = tuple(begin for begin, _ in format.blocks)
        self._marks = (*self._begins, *format.silent) if calls else ()
        self._state = self._reasoning if opened else self._start
        self._block: tuple[str, str | None] = ("", None)
        self._searched = 0
        self._ends: list[int] = []
        self._text = StrippedText("text")
        self._thought = StrippedText("reasoning")

    # -- states -------------------------------------------------------------------------------------

    def _start(self, final: bool) -> bool:
        think, thought = self.format.thinking
        text = self._buffer.lstrip()
        if text.startswith(think):
            self._go_on(self._reasoning, text[len(think) :])
            return True
        if text.startswith(thought):
            # No reasoning, and no output yet.
            self._go_on(self._opening, text[len(thought) :])
            return True
        if not final and (think.startswith(text) or thought.startswith(text)):
            return False
        self._state = self._opening
        return True

    def _reasoning(self, final: bool) -> bool:
        thought = self.format.thinking[1]
        at = self._buffer.find(thought)
        if at >= 0:
            self._say(self._thought, self._buffer[:at])
            self._go_on(self._opening, self._buffer[at + len(thought) :])
            return True
        return self._say_all_but(self._thought, (thought,), final)

    def _opening(self, final: bool) -> bool:
        """State: the answer's first character determines whether the whole answer may be a call."""
        if not self.calls or not self.tools or self.format.read_whole is None:
            self._state = self._content
            return True
        text = self._buffer.lstrip()
        if not text:
            return False
        may_call = text[0] in self.format.whole_starts
        self._state = self._maybe_calls if may_call else self._content
        return True

    def _maybe_calls(self, final: bool) -> bool:
        """State: buffer to the end, where it is determined whether the answer consists of calls only."""
        longest = max((len(begin) for begin in self._begins), default=0)
        if self._first(self._begins, max(0, self._searched - longest))[0] >= 0:
            self._go_on(self._content, self._buffer)
            return True
        self._searched = len(self._buffer)
        if not final:
            return False
        assert self.format.read_whole is not None
        calls = self.format.read_whole(self._buffer.strip(), self.tools)
        self._out.extend(calls or [])
        self._go_on(self._content, "" if calls else self._buffer)
        return not calls

    def _content(self, final: bool) -> bool:
        at, mark = self._first(self._marks, 0)
        if at < 0:
            return self._say_all_but(self._text, self._marks, final)
        self._say(self._text, self._buffer[:at])
        rest = self._buffer[at + len(mark) :]
        for block in self.format.blocks:
            if block[0] == mark:
                self._block = block
                self._ends = []
                self._go_on(self._call, rest)
                return True
        self._go_on(self._content, rest)
        return True

    def _call(self, final: bool) -> bool:
        """State: a call is returned when complete, so that no unparsable call is started."""
        begin, end = self._block
        if end is None:
            return self._open_call(final)
        while True:
            at = self._buffer.find(end, self._searched)
            # An opening mark after the first closing mark: the call ended there, parsable or not.
            opens = self._first(self._begins, self._ends[0])[0] if self._ends else -1
            if 0 <= opens < at or (opens >= 0 and at < 0) or len(self._ends) == MOST_ENDS:
                return self._called(self._ends[0], len(end))
            if at < 0:
                break
            self._searched = at + len(end)
            calls = self.format.read(begin, self._buffer[:at], self.tools)
            if calls is not None:
                return self._called(at, len(end), calls)
            self._ends.append(at)
        self._searched = max(self._searched, len(self._buffer) - len(end) + 1)
        if not final:
            return False
        return (
            self._called(self._ends[0], len(end))
            if self._ends
            else self._called(len(self._buffer), 0)
        )

    def _open_call(self, final: bool) -> bool:
        """State: a block without a closing mark ends at an opening one, or at the end.

        An opening mark before which no call can be parsed may be a text in the arguments: the next one is tried.
        """
        begin = self._block[0]
        while len(self._ends) < MOST_ENDS:
            at, mark = self._first(self._begins, self._searched)
            if at < 0 and not final:
                return False
            end = at if at >= 0 else len(self._buffer)
            calls = self.format.read(begin, self._buffer[:end], self.tools)
            if calls is not None:
                return self._called(end, 0, calls)
            self._ends.append(end)
            self._searched = end + len(mark)
            if at < 0:
                break
        return self._called(self._ends[0], 0)

    def _called(self, at: int, length: int, calls: list[ToolCall] | None = None) -> bool:
        """Emit the calls in the block that ends at `at`, and continue after its closing mark of `length` characters."""
        if calls is None:
            calls = self.format.read(self._block[0], self._buffer[:at], self.tools)
        if calls is None:
            self.malformed = True
        self._out.extend(calls or [])
        self._go_on(self._content, self._buffer[at + length :])
        return True

    # -- what they share --------------------------------------------------------------------------------

    def _first(self, marks: tuple[str, ...], start: int) -> tuple[int, str]:
        """Return position and mark of the first of `marks`, the longer of two at one position; -1 without one."""
        places = [
            (at, -len(mark), mark) for mark in marks if (at := self._buffer.find(mark, start)) >= 0
        ]
        if not places:
            return -1, ""
        at, _, mark = min(places)
        return at, mark

    def _go_on(self, state: Callable[[bool], bool], buffer: str) -> None:
        self._state = state
        self._buffer = buffer
        self._searched = 0

    def _say_all_but(self, strip: StrippedText, marks: tuple[str, ...], final: bool) -> bool:
        """Emit all buffered text except a possible beginning of one of `marks`."""
        keep = 0 if final else max((held_back(self._buffer, mark) for mark in marks), default=0)
        end = len(self._buffer) - keep
        self._say(strip, self._buffer[:end])
        self._buffer = self._buffer[end:]
        return False


def held_back(text: str, mark: str) -> int:
    """Return how many of the last characters of `text` could begin `mark`."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
