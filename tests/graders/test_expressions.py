"""An operand of an expression is not its value: a number is read whole, or not at all."""

import pytest

from hud.graders import numeric_match
from hud.graders.numbers import first_number

EXPRESSIONS = [
    "(2+3)^2", "2 - 1/2", "{1},{000}", "2+3", "2 + 3", "(2+3)*2", "5 + 3 = 8", "2 - 1", "x = 5 + 3", "1/2 + 1/3",
    "2 x 3", "2x3", "$2 - $1", "$5 + $6", "{1}{000}", "1{000}", "{12}{,}{345}", "1 - 2", "6/2(1+2)", "(1+2)/3",
    "2(3)", "2(3+4)", "10 mod 3", "10 % 3", "(7 - 5)", "-(2+3)", "[2+3]^2", "{2+3}^2", "2+3^2", "2^3+1", "2^3 - 1",
    "10^6 - 1", "1e3+1", "5 plus 3", "5 minus 2", "5 times 3", "10 divided by 2", "10 multiplied by 2", "3 over 4",
    "5 squared", "2 cubed", "5 factorial", "5! = 120", "5!!", "5!/3!", "2 to the power of 3", "2 to the 3",
    "2 raised to 3", "5 and a half", "5 and 1/2", "5 and ½", "3 and three quarters", "3 and a third", "2 thirds",
    "2-thirds", "3 quarters", "7 hundredths", "1 half", "1 third", "5 point 3", "5 point three", "5万", "5 млн",
    "5 Mio.", "5 Millionen", "5 mil", "$3 M", "$3 MM", "$ 5 k", "5-", "4^.5", "2^t", "1.5 10^3", "1.5 10³", "1, 000",
    "1 ,000", "1 00 000", "3..5", "1...5", r"\boxed{1}{000}", r"{1}\,{000}", r"1\,{000}", "{1}.{5}", "{1}000",
    "1,{000}", "one hundred and 5", "two thousand 5", "the square root of 16", "sqrt 16", "square of 5", "twice 5",
    "factorial of 5", "x ≠ 5", "x != 5", r"x \neq 5", "2-(1)", "2 −1", "2 – 1", r"2 + $\frac12$", r"2+\frac{1}{2}",
    r"\frac12+\frac13", "5 -2", "5- 2", "3 + (4)", "(3)+(4)", "-3+4", "-3 + 4", "3+-4", "3 - -4", "5//2",
    r"7 \bmod 3", r"7 \mod 3", "5 grand", "5-dozen", "2^(3)+1", "(2)(3)", "2*(3)", "2 *3", "3·4",
    "1 million and a half", "3 million + 5", "12 + 30%", "4 ** .5", "(5) - 3", "[5] + 3", "5 over the 2",
]  # fmt: skip
NUMBERS = {
    "10-12": 10, "2024-05-01": 2024, "3 quadrillion": 3000000000000000, "5 milliards": 5000000000, "5+": 5,
    "18+ years": 18, "5 (3 of them)": 5, "5!": 5, "5! Great": 5, "The answer is 5!": 5, "60% of 200": 60,
    "5 times": 5, "5 times a day": 5, "3x faster": 3, "5 and 6": 5, "5, 6": 5, "**5** 3 apples": 5, "*5*": 5,
    r"\boxed{5}. So 3": 5, r"\boxed{5}": 5, r"$\boxed{5}$, 3": 5, "{5}": 5, "x^2 = 9": 2, "10 - that is ten": 10,
    "Result:\n- 5": 5, "5\n- 3": 5, "5\n+ 3": 5, "5 minutes": 5, "5 plus": 5, "3 seconds": 3, "5 halfway": 5,
    "5 million": 5000000, "5 miles": 5, "5 mile": 5, "1 second": 1, "5.": 5, "5...": 5, "It is 5. 3 more": 5,
    "5 points": 5, "5 point": 5, "5 over": 5, "5 third-party apps": 5, "1 third-party app": 1, "-5": -5, "(5)": -5,
    "5 %": 5, "5%, not 3": 5, "1,2": 1, "5 m": 5, "$5": 5, "$5 million": 5000000, "$5 per": 5,
    "100 grandmothers": 100, "1 200": 1, "square 5": 5, "section 5-3": 5, "5-year plan": 5, "5 - year": 5,
    "5 -- 3 more": 5, r"\(5\)": 5, "x=5; y=-3": 5, "5 to 6": 5, "5 to the left": 5, "5 mod": 5, "5 milligrams": 5,
    "5x": 5, "5 xylophones": 5, r"\{1, 2\}": 1, "{1, 2}": 1, r"5\%": 5, "5 out of 10": 5,
}  # fmt: skip


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_operand_is_no_number(text):
    assert first_number(text) is None


@pytest.mark.parametrize("text", NUMBERS)
def test_signs_and_words_that_are_no_operators_change_nothing(text):
    assert numeric_match(text, NUMBERS[text]) == 1.0
