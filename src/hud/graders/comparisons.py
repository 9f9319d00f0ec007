"""Comparing an answer with what was expected. Every function returns 0.0 to 1.0."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans(dict.fromkeys(string.punctuation, " "))
_NUMBER = re.compile(r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")


def normalize(text: str) -> str:
    """Return text in lower case, Unicode-composed, without punctuation, articles and doubled spaces."""
    text = unicodedata.normalize("NFKC", text).casefold().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def exact_match(answer: str, expected: str, *, normalize_text: bool = True) -> float:
    """1.0 if the two are equal, by default after `normalize`: "The 3 cats." matches "3 cats"."""
    if normalize_text:
        return float(normalize(answer) == normalize(expected))
    return float(answer == expected)


def contains(answer: str, expected: str, *, case_sensitive: bool = False) -> float:
    """1.0 if `expected` stands in the answer, also inside a word: "cat" stands in "concatenate"."""
    return contains_all(answer, [expected], case_sensitive=case_sensitive)


def contains_any(answer: str, expected: Iterable[str], *, case_sensitive: bool = False) -> float:
    """1.0 if any of `expected` stands in the answer; 0.0 for none at all."""
    fold = _fold(case_sensitive)
    return float(any(fold(part) in fold(answer) for part in _several(expected)))


def contains_all(answer: str, expected: Iterable[str], *, case_sensitive: bool = False) -> float:
    """1.0 if all of `expected` stand in the answer."""
    fold = _fold(case_sensitive)
    return float(all(fold(part) in fold(answer) for part in _several(expected)))


def numeric_match(answer: str, expected: float, *, tolerance: float = 0.0) -> float:
    """1.0 if the first number in the answer is within `tolerance` (absolute) of `expected`.

    Thousands commas, signs and exponents are read. A percent sign is not: "60%" is 60, not 0.6.
    """
    number = first_number(answer)
    if number is None:
        return 0.0
    # Room for the rounding of decimal fractions: 0.1 + 0.2 matches 0.3.
    return float(abs(number - expected) <= tolerance + 1e-9 * max(1.0, abs(expected)))


def first_number(text: str) -> float | None:
    """Return the first number in text, or None."""
    match = _NUMBER.search(text)
    return None if match is None else float(match[0].replace(",", ""))


def f1_score(answer: str, reference: str) -> float:
    """Token F1 after `normalize`: harmonic mean of precision and recall (Rajpurkar et al. 2016)."""
    given, wanted = normalize(answer).split(), normalize(reference).split()
    if not given or not wanted:
        return float(given == wanted)
    shared = sum((Counter(given) & Counter(wanted)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(given), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _fold(case_sensitive: bool) -> Callable[[str], str]:
    return str if case_sensitive else str.casefold


def _several(expected: Iterable[str]) -> Iterable[str]:
    """One string is one thing to look for, not its letters."""
    return [expected] if isinstance(expected, str) else expected
