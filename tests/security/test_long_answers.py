"""Answers that are made to take a grader long: comparisons end, for any answer that can be sent."""

import subprocess
import sys

import pytest

from hud.graders import exact_match, normalize, numeric_match

LENGTH = 200_000
"""Characters; a quadratic comparison of as many takes minutes to hours."""
ANSWERS = {
    "spaces": "' ' * LENGTH",
    "lines": "'\\n' * LENGTH",
    "spaces in parentheses": "('(' + ' ' * 5000) * (LENGTH // 5000)",
    "decimals": "'0.' + '1' * LENGTH",
    "thousands": "'111,' * (LENGTH // 4)",
    "articles": "'the ' * (LENGTH // 4) + 'end'",
    "nested quotes": "'«' * (LENGTH // 2) + 'x' + '»' * (LENGTH // 2)",
    "marks": "'\"*' * (LENGTH // 2)",
}
PROGRAM = """
import sys
from hud.graders import contains, exact_match, f1_score, numeric_match
LENGTH, answer = int(sys.argv[1]), eval(sys.argv[2], {"LENGTH": int(sys.argv[1])})
print([exact_match(answer, "x"), contains(answer, "x1"), f1_score(answer, "x"), numeric_match(answer, 7)])
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ANSWERS)
def test_a_comparison_ends(kind):
    command = [sys.executable, "-c", PROGRAM, str(LENGTH), ANSWERS[kind]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_what_is_not_made_to_take_long_is_compared_as_before():
    assert normalize("«" * 20 + "The end." + "»" * 20) == "end"
    assert normalize("the the the end") == "end"
    assert numeric_match("It is   42 (about)", 42)
    assert numeric_match("(" + " " * 500 + "5)", -5)
    assert numeric_match("0." + "3" * 3000, 1 / 3, tolerance=1e-9)
    assert numeric_match("0." + "3" * 9000, 1 / 3)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["«" * 900 + "A b" + "»" * 900, "The " * 900 + "end"])
def test_a_text_that_is_too_nested_is_compared_as_it_is(text):
    assert normalize(normalize(text)) == normalize(text)
    assert exact_match(text, text)
    assert not exact_match(text, "end")


@pytest.mark.parametrize("mark", [",", ":", "`", "x", "€", "é", "⁻", "⁺"])
@pytest.mark.parametrize("number", ["1e{}1", "2^{}1", "2**({}1)", "3 × 10^{}1", "2^2^{}1"])
def test_a_mark_that_is_no_sign_of_an_exponent_fails_no_grader(number, mark):
    text = number.format(mark)
    assert numeric_match(text, 1e9) == 0.0
    assert numeric_match(f"{text}0", 1e9) == 0.0
