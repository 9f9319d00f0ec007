"""Comparisons of an answer with an expected value. Every function returns 0.0 to 1.0."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction

from hud.graders.normalization import normalize
from hud.graders.numbers import exact, first_number


def exact_match(answer: str, expected: str, *, normalize_text: bool = True) -> float:
    """1.0 if the two are equal, by default after `normalize`: "The 3 cats." matches "3 cats".

    If either text normalizes to "", the unnormalized texts are compared.
    """
    if normalize_text:
        answer, expected = _comparable(answer, expected)
    return float(answer == expected)


def contains(answer: str, expected: str, *, case_sensitive: bool = False) -> float:
    """1.0 if `expected` is a substring of the answer, also within a word: "cat" of "concatenate"."""
    return contains_all(answer, [expected], case_sensitive=case_sensitive)


def contains_any(answer: str, expected: Iterable[str], *, case_sensitive: bool = False) -> float:
    """1.0 if any of `expected` is a substring of the answer; 0.0 for an empty list."""
    fold = _fold(case_sensitive)
    return float(any(fold(part) in fold(answer) for part in _several(expected)))


def contains_all(answer: str, expected: Iterable[str], *, case_sensitive: bool = False) -> float:
    """1.0 if all of `expected` are substrings of the answer; 0.0 for an empty list."""
    fold = _fold(case_sensitive)
    parts = list(_several(expected))
    return float(bool(parts) and all(fold(part) in fold(answer) for part in parts))


def numeric_match(answer: str, expected: float, *, tolerance: float = 0.0) -> float:
    """1.0 if the first number in the answer is within `tolerance` (absolute) of `expected`.

    Signs ("-5", "\u2212 5", "(5)" in accounts), thousands separators, exponents and fractions are part of the number. A
    percent sign is not: "60%" is 60, not 0.6. Integers compare exactly; decimal fractions within a relative 1e-12,
    the rounding of floats: 0.1 + 0.2 matches 0.3.
    """
    number, wanted, allowed = first_number(answer), exact(expected), exact(tolerance)
    if number is None or wanted is None or allowed is None:
        return 0.0
    if number.denominator == 1 and wanted.denominator == 1:
        rounding = Fraction(0)
    else:
        rounding = max(abs(wanted), allowed) / 10**12
    return float(abs(number - wanted) <= allowed + rounding)


def f1_score(answer: str, reference: str) -> float:
    """Token F1 after `normalize`: harmonic mean of precision and recall (Rajpurkar et al. 2016)."""
    words, wanted = (text.split() for text in _comparable(answer, reference))
    if not words or not wanted:
        return float(words == wanted)
    shared = sum((Counter(words) & Counter(wanted)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(words), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def _comparable(answer: str, expected: str) -> tuple[str, str]:
    """Return both texts normalized, or both unchanged if either normalizes to ""."""
    normal = normalize(answer), normalize(expected)
    return normal if all(normal) else (answer.strip(), expected.strip())


def _fold(case_sensitive: bool) -> Callable[[str], str]:
    """Return the form in which texts are compared: an accent may be a character of its own, or part of its letter."""
    return _composed if case_sensitive else lambda text: _composed(_composed(text).casefold())


def _composed(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _several(expected: Iterable[str]) -> Iterable[str]:
    """Return a list of strings; a single string is one element, not its letters."""
    return [expected] if isinstance(expected, str) else expected
