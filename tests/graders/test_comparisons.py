"""Comparing an answer with what was expected."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.graders.verdicts import EXACT, NUMERIC

from hud.graders import (
    contains,
    contains_all,
    contains_any,
    exact_match,
    f1_score,
    normalize,
    numeric_match,
)

words = st.text(alphabet="abcxyz ÄßéİΣ,.-'\"!0123456789", max_size=40)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat, dog & an Owl!", "cat dog & owl"),
        ("STRASSE", "strasse"),
        ("Straße", "strasse"),
        ("e\u0301te\u0301", "été"),
        ("ﬁne", "fine"),
        ("theatre", "theatre"),
        ("\tline\none ", "line one"),
        ("The", "the"),
        ("A", "a"),
        ("C++.", "c++"),
        ("-1,000", "-1000"),
        ("?!", ""),
        ("", ""),
    ],
)
def test_normalize(text, normal):
    assert normalize(text) == normal


@pytest.mark.slow
@given(st.text(max_size=60))
def test_normalizing_twice_changes_nothing(text):
    assert normalize(normalize(text)) == normalize(text)


@given(words)
def test_normalized_text_has_no_capitals_and_no_double_spaces(text):
    normal = normalize(text)
    assert normal == normal.casefold().strip()
    assert "  " not in normal


@pytest.mark.parametrize(("answer", "expected", "same"), EXACT)
def test_exact_match_agrees_with_a_careful_person(answer, expected, same):
    assert exact_match(answer, expected) == float(same)
    assert exact_match(expected, answer) == float(same)


@pytest.mark.parametrize(("answer", "expected", "tolerance", "same"), NUMERIC)
def test_numeric_match_agrees_with_a_careful_person(answer, expected, tolerance, same):
    assert numeric_match(answer, expected, tolerance=tolerance) == float(same)


def test_the_verdicts_are_many():
    assert len(EXACT) + len(NUMERIC) >= 300
    assert len({(answer, expected) for answer, expected, _ in EXACT}) == len(EXACT)


@given(st.text(max_size=20), st.sampled_from("+-/<>=^%$#&|~@"), st.text(max_size=20))
def test_no_operator_is_dropped(before, operator, after):
    assert operator in normalize(f"{before} {operator} {after}")


@given(
    st.text(alphabet="0123456789.,-+ ", max_size=12),
    st.text(alphabet="0123456789.,-+ ", max_size=12),
)
def test_equal_numerals_have_equal_digits(one, other):
    def digits(text):
        return [character for character in text if character.isdigit() or character in "-+"]

    if exact_match(one, other) == 1.0:
        assert digits(one) == digits(other)


def test_exact_match():
    assert exact_match("The 3 cats.", "3 cats") == 1.0
    assert exact_match("3 cats", "4 cats") == 0.0
    assert exact_match("The 3 cats.", "3 cats", normalize_text=False) == 0.0
    assert exact_match("3 cats", "3 cats", normalize_text=False) == 1.0


def test_contains():
    assert contains("Concatenate", "cat") == 1.0
    assert contains("Concatenate", "CAT") == 1.0
    assert contains("Concatenate", "CAT", case_sensitive=True) == 0.0
    assert contains("dog", "cat") == 0.0
    assert contains("dog", "") == 1.0
    assert contains("un e\u0301te\u0301", "\u00e9T\u00c9") == 1.0
    assert contains("\u00e9", "e\u0301", case_sensitive=True) == 1.0
    assert contains("e\u0301", "e") == 0.0


def test_contains_any_and_all():
    assert contains_any("a dog", ["cat", "DOG"]) == 1.0
    assert contains_any("a dog", ["cat", "DOG"], case_sensitive=True) == 0.0
    assert contains_any("a dog", []) == 0.0
    assert contains_all("a dog and a cat", ["cat", "DOG"]) == 1.0
    assert contains_all("a dog", ["cat", "dog"]) == 0.0
    assert contains_all("a dog", []) == 0.0
    assert contains_all("a dog", (part for part in ["dog"])) == 1.0


def test_a_single_string_where_several_are_wanted_is_not_taken_letter_by_letter():
    assert contains_any("a dog", "cat") == 0.0
    assert contains_all("tac", "cat") == 0.0


@pytest.mark.parametrize(
    ("answer", "expected", "tolerance", "score"),
    [
        ("42", 42, 0, 1.0),
        ("The answer is 42.", 42, 0, 1.0),
        ("42.0", 42, 0, 1.0),
        ("-3", -3, 0, 1.0),
        ("+3", 3, 0, 1.0),
        ("1,234,567.5", 1234567.5, 0, 1.0),
        ("1,2", 1, 0, 1.0),
        (".5", 0.5, 0, 1.0),
        ("6.02e23", 6.02e23, 0, 1.0),
        ("60%", 60, 0, 1.0),
        ("60%", 0.6, 0, 0.0),
        ("first 1, then 2", 2, 0, 0.0),
        ("about 99.5", 100, 0.5, 1.0),
        ("about 99.4", 100, 0.5, 0.0),
        ("0.30000000000000004", 0.3, 0, 1.0),
        ("no number", 0, 0, 0.0),
        ("", 0, 0, 0.0),
        ("1e999", 1, 0, 0.0),
        ("2024-05-01", 2024, 0, 1.0),
        ("$1,000", 1000, 0, 1.0),
        ("10-12", 10, 0, 1.0),
        ("x = 5e", 5, 0, 1.0),
    ],
)
def test_numeric_match(answer, expected, tolerance, score):
    assert numeric_match(answer, expected, tolerance=tolerance) == score


@given(st.integers(-(10**12), 10**12))
def test_every_whole_number_is_found_in_prose_with_and_without_commas(number):
    assert numeric_match(f"I count {number} of them", number) == 1.0
    assert numeric_match(f"I count {number:,} of them", number) == 1.0
    assert numeric_match(f"I count {number} of them", number + 1 + abs(number) // 10**6) == 0.0


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_matches_its_own_repr(number):
    assert numeric_match(repr(number), number) == 1.0


@given(
    st.floats(-1e6, 1e6),
    st.floats(-1e6, 1e6),
    st.floats(0, 10),
)
def test_more_tolerance_never_makes_a_match_worse(said, expected, tolerance):
    narrow = numeric_match(repr(said), expected, tolerance=tolerance)
    wide = numeric_match(repr(said), expected, tolerance=2 * tolerance)
    assert narrow <= wide
    if abs(said - expected) <= tolerance:
        assert narrow == 1.0


@given(st.text(max_size=200))
@example("E0")
@example("-e5,7")
def test_no_text_breaks_numeric_match(text):
    assert numeric_match(text, 7) in (0.0, 1.0)


def test_a_long_row_of_digits_takes_no_time_and_is_infinite_at_worst():
    assert numeric_match("9" * 100_000, 7) == 0.0
    assert numeric_match("1," * 100_000, 1) == 1.0


def test_f1_score():
    assert f1_score("the cat sat", "a cat sat") == 1.0
    assert f1_score("cat", "cat sat") == pytest.approx(2 / 3)
    assert f1_score("dog", "cat") == 0.0
    assert f1_score("cat cat", "cat") == pytest.approx(2 / 3)
    assert f1_score("", "") == 1.0
    assert f1_score("the", "a") == 0.0
    assert f1_score("", "a") == 0.0
    assert f1_score("-5", "5") == 0.0
    assert f1_score("", "cat") == 0.0


@given(words, words)
def test_f1_is_symmetric_and_between_0_and_1(one, other):
    score = f1_score(one, other)
    assert 0.0 <= score <= 1.0
    assert math.isclose(score, f1_score(other, one))
    assert f1_score(one, one) == 1.0


@given(words, words)
def test_f1_is_1_exactly_for_the_same_bag_of_words(one, other):
    if normalize(one) and normalize(other):
        one, other = normalize(one), normalize(other)
    same = sorted(one.split()) == sorted(other.split())
    assert (f1_score(one, other) == 1.0) == same


PARTS = {
    "1,234,56": 1234,
    "1234,567": 1234,
    "12,34,567": 12,
    "0,5": 0,
    "0x10": 0,
    "0b11": 0,
    "1e2.5": 100,
    "5e3e2": 5000,
    "5²": 5,
    "10^(1/2)": 5,
    "5.10^3": 132.651,
    "0.000.001": 1,
    "--5": -5,
    "-(-5)": -5,
    "minus 5": 5,
    r"\frac{1}{2}": 1,
    "3 million": 3,
    "1,5 million": 1,
    "3 million 500 thousand": 3_000_000,
    "10 000": 10,
    "1٫5": 1,
    "1，234": 1,
    "1e.5": 1,
    "1/1,000": 1,
    "3/4,5": 0.75,
    "5/1 000": 5,
    "1/1e3": 1,
    "1/2½": 0.5,
    "1/(2)": 1,
    "(1)/(2)": -1,
    "7 ÷ 2": 7,
    "7∕2": 7,
    "8÷2÷2": 8,
    r"10,\!000": 10,
    r"10{,}000": 10,
    r"\frac{x}{2}": 2,
    r"\frac{1,000}{3}": 1000,
    r"\frac{1}{-2}": 1,
    r"\frac{1}{\frac12}": 1,
    r"5 \frac{1}{2}": 5,
}


@pytest.mark.parametrize("answer", PARTS)
def test_a_part_of_a_number_is_not_the_number(answer):
    assert numeric_match(answer, PARTS[answer]) == 0.0


WRITTEN = {
    "１２３": 123,
    "１，２３４．５": 1234.5,
    "٣٫٥": 3.5,
    "𝟓": 5,
    "-(5)": -5,
    "minus 5": -5,
    "about negative $.5": -0.5,
    r"\frac{1}{2}": 0.5,
    r"3\dfrac{1}{4}": 3.25,
    r"-\frac{1}{2}": -0.5,
    "3 million": 3_000_000,
    "-$2.5 billion": -2_500_000_000,
    "3-million": 3_000_000,
    "1/2 Million": 500_000,
    "3½ thousand": 3500,
    "2 hundred thousand": 200_000,
    "(3 million)": -3_000_000,
    "3 millionaires": 3,
    "10 000": 10_000,
    "250 000 people": 250_000,
    "10²": 100,
    "2^(3)": 8,
    "0,000": 0,
    "The sum is 5, 6 is not": 5,
    r"10,\!000": 10_000,
    r"$10{,}000$": 10_000,
    r"2\,500\,000": 2_500_000,
    "10~000": 10_000,
    "3{,}14": 3.14,
    r"5 \tfrac{1}{2}": 5.5,
    "7 ÷ 2": 3.5,
    "1／2": 0.5,
    "(1/2)": 0.5,
    "-(1/2)": -0.5,
    "(1e3)": 1000,
    "Rs.500": 500,
    "No.7": 7,
    "x=.5": 0.5,
}


@pytest.mark.parametrize("answer", WRITTEN)
def test_numbers_in_other_scripts_and_forms(answer):
    assert numeric_match(answer, WRITTEN[answer]) == 1.0
