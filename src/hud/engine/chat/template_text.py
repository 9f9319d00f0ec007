"""Text that a chat template has written, with the spans that are the template's own.

Knows strings and spans; knows no tokens. Everything that is not known to be the template's own counts as a caller's: text
from users, tools, environments and models, and what a template computes from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex, overload

Span = tuple[int, int]
"""First character, and the one after the last."""


class TemplateText(str):
    """A string of which the characters in `own` come from the template's source.

    Operations by which templates put their text together keep the spans. Every other operation of `str` returns a plain
    string, all of which counts as a caller's: a lost span makes a control token plain text, never the reverse.
    """

    __slots__ = ("own",)
    own: tuple[Span, ...]
    """In order, and not touching each other."""

    def __new__(cls, text: str = "", own: tuple[Span, ...] = ()) -> TemplateText:
        made = str.__new__(cls, text)
        made.own = own
        return made

    @classmethod
    def literal(cls, text: str) -> TemplateText:
        """Return text that is the template's own from end to end."""
        return cls(text, ((0, len(text)),) if text else ())

    def told(self) -> tuple[str, ...]:
        """Return the callers' text: the pieces between the template's own."""
        pieces, at = [], 0
        for start, end in (*self.own, (len(self), len(self))):
            if start > at:
                pieces.append(str.__getitem__(self, slice(at, start)))
            at = end
        return tuple(pieces)

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return joined((self, other)) if type(other) in SUMMED else NotImplemented

    def __radd__(self, other: str) -> str:
        return joined((other, self)) if type(other) in SUMMED else NotImplemented

    @overload
    def __getitem__(self, key: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, key: slice[Any, Any, Any]) -> TemplateText: ...
    def __getitem__(self, key: SupportsIndex | slice[Any, Any, Any]) -> str:
        text = str.__getitem__(self, key)
        if not isinstance(key, slice):
            return text
        if key.step not in (None, 1):
            return TemplateText(text)
        start, end, _ = key.indices(len(self))
        own = [
            (max(first, start) - start, min(last, end) - start)
            for first, last in self.own
            if first < end and last > start
        ]
        return TemplateText(text, tuple(own))

    def strip(self, chars: str | None = None, /) -> str:
        start = len(self) - len(str.lstrip(self, chars))
        return self[start : max(start, len(str.rstrip(self, chars)))]

    def lstrip(self, chars: str | None = None, /) -> str:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None, /) -> str:
        return self[: len(str.rstrip(self, chars))]

    def join(self, pieces: Iterable[str], /) -> str:
        between: list[str] = []
        for piece in pieces:
            between += (self, piece)
        return joined(between[1:])


SUMMED = (str, TemplateText)
"""Strings whose sum is their characters in a row. Others (jinja2's Markup) have a sum of their own."""


def joined(pieces: Iterable[str]) -> TemplateText:
    """Return pieces as one text; a plain string among them is a caller's."""
    pieces = list(pieces)
    own: list[Span] = []
    at = 0
    for piece in pieces:
        if type(piece) is TemplateText:
            for start, end in piece.own:
                if own and own[-1][1] == start + at:
                    own[-1] = (own[-1][0], end + at)
                else:
                    own.append((start + at, end + at))
        at += len(piece)
    return TemplateText("".join(pieces), tuple(own))
