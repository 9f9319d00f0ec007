"""The query language of the search: words, "phrases", -negation, `field:value` and `number:<0.5`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hud.errors import UsageError

MOST_TERMS = 16
WORD = re.compile(r"[^\W_]{1,64}")
"""Letters and digits: both databases find the same words. Longer ones are several."""

TEXTS = {
    "prompt": "p",
    "answer": "a",
    "thought": "h",
    "tool": "t",
    "argument": "g",
    "result": "r",
    "error": "x",
}
"""Tag of each field of a run's text, the first letter of every indexed word. A word without a field is searched in all of them."""
LABELS = {
    "task": "k",
    "env": "e",
    "model": "m",
    "job": "j",
    "status": "s",
    "failure": "f",
    "source": "o",
}
"""Tag of each field of a run's description."""
TAGS = {**TEXTS, **LABELS}
NUMBERS = ("reward", "turns", "tokens", "cost", "seconds")
WHOLE = ("status", "failure", "source")
"""Fields whose values are whole words."""

_PART = re.compile(
    r'(?P<minus>-?)(?:(?P<field>[A-Za-z]+):(?!//))?(?:"(?P<quoted>[^"]*)"|(?P<bare>[^\s"]+))'
)
_RANGE = re.compile(r"(?P<low>-?[\d.]+)\.\.(?P<high>-?[\d.]+)")
_BOUND = re.compile(r"(?P<sign><=|>=|<|>|=?)(?P<number>-?(?:\d+\.?\d*|\.\d+))")
SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "": operator.eq,
    "=": operator.eq,
}


@dataclass(frozen=True)
class Term:
    """Words that follow one another in a field."""

    words: tuple[str, ...]
    field: str | None = None
    """A key of `TAGS`; None: any of `TEXTS`."""
    prefix: bool = True
    """The last word may be the beginning of one."""
    excluded: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the fields that are searched."""
        return tuple(TEXTS.values()) if self.field is None else (TAGS[self.field],)


@dataclass(frozen=True)
class Bound:
    """A condition on a number of the run."""

    field: str
    """One of `NUMBERS`."""
    sign: str
    """A key of `SIGNS`."""
    number: float
    excluded: bool = False


@dataclass(frozen=True)
class Query:
    """Conditions that a run meets, all of them."""

    terms: tuple[Term, ...]
    bounds: tuple[Bound, ...]

    def __bool__(self) -> bool:
        return bool(self.terms or self.bounds)

    @property
    def shown(self) -> list[Term]:
        """Terms whose matches a snippet marks."""
        return [term for term in self.terms if not term.excluded and term.field not in LABELS]


def parse(text: str) -> Query:
    """Return the query of a text. Raises `UsageError` for an unknown field, a missing value or an open quotation mark."""
    terms: list[Term] = []
    bounds: list[Bound] = []
    place = 0
    while (place := _next(text, place)) < len(text):
        part = _PART.match(text, place)
        if part is None:
            opened = text.index('"', place) + 1
            raise UsageError(f"The quotation mark at character {opened} is not closed.")
        place = part.end()
        field = (part["field"] or "").lower() or None
        if field in NUMBERS:
            bounds += _bounds(field, part["quoted"] or part["bare"] or "", bool(part["minus"]))
        else:
            terms += _terms(part, field)
    if len(terms) + len(bounds) > MOST_TERMS:
        raise UsageError(
            f"A search has at most {MOST_TERMS} terms; this one has {len(terms) + len(bounds)}."
        )
    return Query(tuple(terms), tuple(bounds))


def _next(text: str, place: int) -> int:
    """Return the place of the next character that is not white space."""
    while place < len(text) and text[place].isspace():
        place += 1
    return place


def _terms(part: re.Match[str], field: str | None) -> list[Term]:
    quoted, bare = part["quoted"], part["bare"]
    if field is not None and field not in TAGS:
        raise UsageError(
            f"There is no field {field!r}; there are {', '.join((*TAGS, *NUMBERS))}. "
            f'To search for the text, quote it: "{part["field"]}:{quoted or bare}"'
        )
    words = tuple(WORD.findall((quoted or bare or "").lower()))
    if not words:
        if field is not None:
            raise UsageError(f"The field {field!r} needs a value, as in {field}:word.")
        return []
    prefix = quoted is None and field not in WHOLE
    return [Term(words[:MOST_TERMS], field, prefix, bool(part["minus"]))]


def _bounds(field: str, value: str, excluded: bool) -> list[Bound]:
    between = _RANGE.fullmatch(value)
    if between is not None and not excluded:
        return [
            *_bounds(field, f">={between['low']}", excluded=False),
            *_bounds(field, f"<={between['high']}", excluded=False),
        ]
    bound = _BOUND.fullmatch(value)
    if bound is None:
        raise UsageError(
            f"{field}:{value} is no condition on a number; write {field}:<0.5, {field}:>=1 or {field}:0.2..0.8."
        )
    return [Bound(field, bound["sign"], float(bound["number"]), excluded)]
