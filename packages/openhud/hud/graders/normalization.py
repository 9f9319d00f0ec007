"""Text normalization for comparisons: removes typography without meaning.

Signs, operators, digits, decimal points, currency and percent signs are never dropped: "-5" is not "5", "3.5" is not
"3 5", "C++" is not "C".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_SAME_MARK = (
    dict.fromkeys("‘’‚", "'")
    | dict.fromkeys("“”„", '"')
    | dict.fromkeys("‐‑‒–−", "-")
    | dict.fromkeys("—―", " ")
    | {"…": "...", "\u00ad": "", "\u200b": "", "\u2060": "", "\ufeff": ""}
)
_TYPOGRAPHIC = ("<wide>", "<narrow>", "<compat>", "<noBreak>")
"""Compatibility decompositions that keep the meaning: full-width forms and ligatures, not superscripts or fractions."""

_LETTER = r"[^\W\d_]"
_WORD = rf"{_LETTER}{{2}}"


def _without_commas(match: re.Match[str]) -> str:
    return match[0].replace(",", "")


_REWRITES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    # Pairs around emphasized or quoted text; parentheses around a choice: (C).
    (re.compile(r"(?<![\w*])(\*{1,3})(?=[^\s*])([^*]*[^\s*])\1(?![\w*])"), r"\2"),
    (re.compile(r'(?<![\w"])"([^"]+)"(?![\w"])'), r"\1"),
    (re.compile(r"(?<![\w'])'([^']+)'(?![\w'])"), r"\1"),
    (re.compile(r"(?<![\w`])`([^`]+)`(?![\w`])"), r"\1"),
    (re.compile(r"«([^«»]+)»"), r"\1"),
    (re.compile(rf"^\(({_LETTER}[^()]*)\)$"), r"\1"),
    # 1,234,567 is one number. 1,2 may be two: its comma stays.
    (re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\d,])"), _without_commas),
    # Marks that end a sentence or a clause. n! is a factorial, and 5! may be one.
    (re.compile(rf"(?<={_WORD})!+(?=\s|$)"), " "),
    (
        re.compile(r"""(?<=[\w)\]}%+#°$€£¥'"`!])(?!(?<=\d)[.:]\s+\d)[.,;:?]+(?=[\s)\]}'"]|$)"""),
        " ",
    ),
    (re.compile(rf"(?<={_LETTER})[,;](?={_LETTER})"), " "),
    # well-known is well known, but x-y is a difference.
    (re.compile(rf"(?<={_WORD})-(?={_WORD})"), " "),
    (re.compile(rf"(?<!\S)(?:the|an) (?!(?:the|a|an)(?!\S))(?={_WORD}|\d)"), ""),
    # "A" alone, "A and B" and "vitamin A" name things.
    (re.compile(rf"^a (?!(?:the|a|an|and|or|is|but|not|to)(?!\S))(?={_WORD}|\d)"), ""),
)
_FEWEST_PASSES, _MOST_PASSES = 4, 32
_MOST_WORK = 500_000
"""Characters that are rewritten before a text counts as nested too deeply."""
_MARKS_ALONE = re.compile(r"""[.,;:?!"'`«»\s]*""")


def normalize(text: str) -> str:
    """Return text in lower case, in Unicode's composed form, without typography that carries no meaning.

    Dropped: doubled spaces, quotation marks and emphasis around words, marks that end a sentence or clause, commas
    between thousands, hyphens within words, and articles before a word. Text of punctuation marks alone gives "".
    Idempotent: normalizing twice changes nothing. Typography that is nested more deeply than any prose's is kept, all of
    it: each of its layers takes a pass over the text.
    """
    text = folded = _folded(" ".join(_folded(text).split()))
    for _ in range(max(_FEWEST_PASSES, min(_MOST_PASSES, _MOST_WORK // (len(text) + 1)))):
        before = text
        for pattern, replacement in _REWRITES:
            text = pattern.sub(replacement, text)
        text = _folded(" ".join(text.split()))
        if text == before:
            return "" if _MARKS_ALONE.fullmatch(text) else text
    return folded


def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFC", "".join(map(_plain, text)))
    return unicodedata.normalize("NFC", plain.casefold())


def _plain(character: str) -> str:
    if character < "\x80":
        return character
    if character in _SAME_MARK:
        return _SAME_MARK[character]
    kind, _, _ = unicodedata.decomposition(character).partition(" ")
    return unicodedata.normalize("NFKC", character) if kind in _TYPOGRAPHIC else character
