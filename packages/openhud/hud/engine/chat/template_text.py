"""Rendered text of a chat template, with the spans of the template's own text.

Works on strings and spans; independent of tokens. All other text counts as a caller's: text of users, tools, environments
and models, and text that a template computes from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex, overload

Span = tuple[int, int]
"""Start and end, in characters."""


class TemplateText(str):
    """A string whose characters in `own` are from the template's source.

    Concatenating operations of templates keep the spans. Every other operation of `str` returns a plain string, which
    counts as a caller's: a lost span makes a control token plain text, never the reverse.
    """

    __slots__ = ("own",)
    own: tuple[Span, ...]
    """Sorted, and not adjacent."""

    def __new__(cls, text: str = "", own: tuple[Span, ...] = ()) -> TemplateText:
        made = str.__new__(cls, text)
        made.own = own
        return made

    @classmethod
    def literal(cls, text: str) -> TemplateText:
        """Return text that is entirely the template's own."""
        return cls(text, ((0, len(text)),) if text else ())

    def caller_pieces(self) -> tuple[str, ...]:
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
"""Types of strings with plain concatenation, unlike jinja2's Markup."""


def joined(pieces: Iterable[str]) -> TemplateText:
    """Return the concatenation of pieces; plain strings are callers'."""
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
