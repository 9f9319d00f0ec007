"""gpt-oss: messages on channels (harmony). `analysis` is reasoning, `final` the answer, and a message to a recipient a call.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant to=functions.look<|channel|>commentary json<|message|>{...}<|call|>

A `commentary` message without a recipient is a preamble that users see.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from hud.engine.chat.template_text import TemplateText, joined
from hud.engine.chat.tool_calls.format import Mark, Parsed, StrippedText, ToolFormat, TurnParser
from hud.engine.chat.tool_calls.json_calls import by_tool, call, loaded, quoted
from hud.engine.chat.tool_calls.marked import MOST_ENDS, held_back
from hud.engine.chat.tool_calls.writing import each_call, json_text
from hud.trace import ToolSpec

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_BREAKS = (*_ENDS, START, CHANNEL)
"""Marks that end a message; the last two for a missing end mark."""
_OPENINGS = (START, CHANNEL, MESSAGE, CONSTRAIN, "to=")
_BREAK = re.compile("|".join(map(re.escape, _BREAKS)))
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_NAMESPACE = "functions."
_LONGEST_HEADER = 500


def _rules(tools: Sequence[ToolSpec], mark: Mark, _many: bool) -> str:
    """Return Lark rules of one call, after unconstrained reasoning: the format has one call per turn."""
    calls = by_tool(
        tools,
        lambda tool: (
            f"{mark(CHANNEL)} {quoted(f'commentary to={_NAMESPACE}{tool.name} ')} "
            f'{mark(CONSTRAIN)} "json" {mark(MESSAGE)} ARGUMENTS'
        ),
    )
    return f"calls: {_reasoning(mark)} call\n{calls}"


def _preamble(mark: Mark) -> str:
    """Return the unconstrained reasoning, and the header of the final message."""
    return f'{_reasoning(mark)} {mark(CHANNEL)} "final" {mark(MESSAGE)}'


def _reasoning(mark: Mark) -> str:
    end, start = mark("<|end|>"), mark(START)
    return f'({mark(CHANNEL)} "analysis" {mark(MESSAGE)} /(.|\\n)*/ {end} {start} "assistant")?'


class HarmonyTurn(TurnParser):
    """Parser of a turn with channels."""

    def __init__(self, *, opened: bool, calls: bool) -> None:
        super().__init__()
        self.calls = calls
        self._state = self._read
        self._kind: Literal["text", "reasoning", "call"] | None = "reasoning" if opened else None
        self._name = ""
        self._strips = {"text": StrippedText("text"), "reasoning": StrippedText("reasoning")}

    def _read(self, final: bool) -> bool:
        return self._header(final) if self._kind is None else self._body(final)

    def _header(self, final: bool) -> bool:
        """Read up to `<|message|>`; text without a header is an answer."""
        text = self._buffer.lstrip()
        at = text.find(MESSAGE)
        if not text or not any(
            text.startswith(opening) or opening.startswith(text) for opening in _OPENINGS
        ):
            self._kind = "text" if text else None
            return bool(text)
        if at < 0 and len(text) < _LONGEST_HEADER:
            # An unterminated header is no answer.
            return False
        header, self._buffer = text[: max(at, 0)], text[at + len(MESSAGE) :] if at >= 0 else text
        recipient = _RECIPIENT.search(header)
        channel = header.partition(CHANNEL)[2].split("<", 1)[0].split()[:1]
        if recipient is not None and recipient[1] != "user" and self.calls:
            self._kind, self._name = "call", recipient[1].removeprefix(_NAMESPACE)
        else:
            self._kind = "reasoning" if channel == ["analysis"] else "text"
        return True

    def _body(self, final: bool) -> bool:
        if self._kind == "call":
            return self._call(final)
        breaks = [(at, mark) for mark in _BREAKS if (at := self._buffer.find(mark)) >= 0]
        if not breaks:
            keep = 0 if final else max(held_back(self._buffer, mark) for mark in _BREAKS)
            cut = len(self._buffer) - keep
            self._say_part(self._buffer[:cut])
            self._buffer = self._buffer[cut:]
            return False
        at, mark = min(breaks)
        self._say_part(self._buffer[:at])
        self._go_on(at, mark)
        return True

    def _call(self, final: bool) -> bool:
        """Read a call's arguments, up to the first mark before which they are whole: a text in them may spell one."""
        breaks = [(match.start(), match[0]) for match in _BREAK.finditer(self._buffer)][:MOST_ENDS]
        at_end = [(len(self._buffer), "")] if final and len(breaks) < MOST_ENDS else []
        for at, mark in [*breaks, *at_end]:
            text = self._buffer[:at]
            arguments = loaded(text) if text.strip() else {}
            if isinstance(arguments, dict) and self._name:
                self._out.append(call(self._name, arguments))
                self._go_on(at, mark)
                return True
        if not final and len(breaks) < MOST_ENDS:
            return False
        self.malformed = True
        self._go_on(*(breaks or at_end)[0])
        return True

    def _go_on(self, at: int, mark: str) -> None:
        """Continue with the header of the message behind a mark; `<|start|>` and `<|channel|>` are part of it."""
        self._kind = None
        self._buffer = self._buffer[at + (len(mark) if mark in _ENDS else 0) :]

    def _say_part(self, text: str) -> None:
        assert self._kind is not None
        self._say(self._strips[self._kind], text)


class HarmonyFormat(ToolFormat):
    """The format of gpt-oss. Prompts end behind `<|start|>assistant`."""

    def parser(
        self, tools: Sequence[ToolSpec], *, opened: bool = False, calls: bool = True
    ) -> HarmonyTurn:
        return HarmonyTurn(opened=opened, calls=calls)

    def ends_reasoning(self, text: str, parsed: Parsed) -> bool:
        return self.thinking[1] in text and not text.lstrip().startswith(_OPENINGS)


def _call(name: str, arguments: Any) -> str:
    return joined((name, TemplateText.literal(f" {CONSTRAIN}json{MESSAGE}"), json_text(arguments)))


HARMONY = HarmonyFormat(
    names=("openai", "gpt-oss"),
    templates=((CHANNEL, "<|call|>"),),
    grammar=_rules,
    write=each_call(f"{CHANNEL}commentary to={_NAMESPACE}", _call, "<|call|>", f"{START}assistant"),
    preamble=_preamble,
    thinking=(f"{CHANNEL}analysis{MESSAGE}", "<|end|>"),
)
