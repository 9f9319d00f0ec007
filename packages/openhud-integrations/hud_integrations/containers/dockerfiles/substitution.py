"""Substitution of variables in words of a Dockerfile: `$X`, `${X}`, `${X:-default}`, `${X:+other}`, quotes and escapes.

Patterns (`${X#prefix}`) are not evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":?[-+?]")


class UnknownValue(Exception):
    """A value that only a build would know."""


def expand(text: str, variables: Mapping[str, str], escape: str) -> str:
    """Return a text with its variables substituted, without quotes and escapes.

    Raises `UnknownValue` for a variable that `variables` lacks, and for text that BuildKit would refuse.
    """
    scan = _Scan(text, variables, escape)
    result = scan.until("")
    if scan.unknown:
        raise UnknownValue
    return result


def split_words(text: str, escape: str) -> list[str]:
    """Split a text at white space outside of quotes; quotes and escapes stay."""
    words, word, quote, position = [], "", "", 0
    while position < len(text):
        character = text[position]
        if character == escape and quote != "'":
            character = text[position : position + 2]
        elif quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        if character.isspace() and not quote:
            words.append(word)
            word = ""
        else:
            word += character
        position += len(character)
    return [word for word in [*words, word] if word]


class _Scan:
    """One pass over a text, from left to right."""

    def __init__(self, text: str, variables: Mapping[str, str], escape: str) -> None:
        self._text, self._variables, self._escape = text, variables, escape
        self._position = 0
        self.unknown = False
        """True once a value was needed that is not known."""

    def until(self, end: str, *, quoted: bool = False) -> str:
        """Return the expanded text before the character `end`, which is passed; "" for the end of the text."""
        result = ""
        while self._position < len(self._text):
            character = self._take(1)
            if character == end:
                return result
            if character == self._escape:
                result += self._escaped(quoted)
            elif character == "$":
                result += self._variable()
            elif character == '"':
                result += self.until('"', quoted=True)
            elif character == "'" and not quoted:
                result += self._literal()
            else:
                result += character
        self.unknown |= bool(end)  # Nothing closes the quote or the brace.
        return result

    def _take(self, length: int) -> str:
        self._position += length
        return self._text[self._position - length : self._position]

    def _literal(self) -> str:
        text, quote, _ = self._text[self._position :].partition("'")
        self._take(len(text) + len(quote))
        self.unknown |= not quote
        return text

    def _escaped(self, quoted: bool) -> str:
        """Return an escaped character; in double quotes only `"`, `$` and the escape itself need one."""
        character = self._take(1)
        return self._escape + character if quoted and character not in ('"', "$", self._escape) else character  # fmt: skip

    def _variable(self) -> str:
        braced = self._text.startswith("{", self._position)
        self._take(braced)
        name = _NAME.match(self._text, self._position)
        if name is None:
            self.unknown |= braced
            return "$"
        self._take(len(name[0]))
        if braced and not self._text.startswith("}", self._position):
            return self._alternative(name[0])
        self._take(braced)
        self.unknown |= name[0] not in self._variables
        return self._variables.get(name[0], "")

    def _alternative(self, name: str) -> str:
        """Return `${NAME:-word}`, `${NAME:+word}` or `${NAME:?word}`; without the colon an empty value is a value."""
        operator = _OPERATOR.match(self._text, self._position)
        if operator is None:
            self.unknown = True
            return self.until("}")
        self._take(len(operator[0]))
        unknown_before, self.unknown = self.unknown, False
        word = self.until("}")
        unknown_word, self.unknown = self.unknown, unknown_before
        value = self._variables.get(name)
        is_set = bool(value) if operator[0].startswith(":") else value is not None
        if operator[0].endswith("+"):
            self.unknown |= is_set and unknown_word
            return word if is_set else ""
        if is_set:
            return value or ""
        self.unknown |= unknown_word or operator[0].endswith("?")
        return word
