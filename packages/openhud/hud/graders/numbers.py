"""Numbers in prose, read exactly: signs, grouping, exponents and fractions belong to the number."""

from __future__ import annotations

import contextlib
import operator
import re
import unicodedata
from decimal import Decimal
from fractions import Fraction

_MINUS = "-\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d"
_CURRENCY = r"[$€£¥]"
_VULGAR = re.compile("[\u00bc-\u00be\u2150-\u215e\u2189]")
_BEFORE_FRACTION = re.compile("([0-9]) +(?=[0-9]+\u2044)")
_GROUP = "[,_'\u2019\u00a0\u2009\u202f]"
_SCALES = {
    "hundred": 2,
    "thousand": 3,
    "lakh": 5,
    "million": 6,
    "crore": 7,
    "billion": 9,
    "milliard": 9,
    "trillion": 12,
    "quadrillion": 15,
    "quintillion": 18,
}
"""Words after a number, and the powers of ten by which they multiply it."""
_PARTS = (
    "third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth|millionth"
)
_DIGIT_WORDS = "zero|one|two|three|four|five|six|seven|eight|nine"
_SCALE = rf"[- ]?(?i:{'|'.join(_SCALES)})s?\b"
_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_NUMBER = re.compile(
    rf"""
    (?P<open>(?<![\w\\])\(\s*)?                              # accounting: (5) is -5
    (?:(?P<sign>[{_MINUS}+±])\s*{_CURRENCY}?\s*)?{_CURRENCY}?\s*
    (?P<digits>(?P<dotted>[0-9]{{1,3}}(?:(?:\.[0-9]{{3}}){{2,}}(?![0-9])(?:,[0-9]+)?|(?:\.[0-9]{{3}})+,[0-9]+))|[0-9]{{1,3}}(?:(?:{_GROUP}[0-9]{{3}})+|(?:[ ][0-9]{{3}}){{2,}}|[ ]000)(?![0-9])(?:\.[0-9]+)?|[0-9]+(?:\.[0-9]+)?|(?<![.\w])\.[0-9]+)
    (?P<unclear>(?:\.[0-9]+)+|,[0-9]{{4,}})?                   # 1.2.3 and $1,2345 are no certain number
    (?:[eE](?P<e>[{_MINUS}+]?[0-9]+)
      |(?:\s*\^\s*|\*\*)[{{(]?(?P<to>[{_MINUS}+]?[0-9]+(?:\.[0-9]+)?)[)}}]?|(?<=10)(?P<raised_to>[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)
      |\s*(?:[×x*·⋅]|\\times|\\cdot)\s*10(?:\s*(?:\^|\*\*)\s*[{{(]?\s*(?P<power>[{_MINUS}+]?[0-9]+)\s*[)}}]?|(?P<raised>[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+))
    )?
    (?:(?:[ ](?P<over>[0-9]+))?[ ]?[/÷][ ]?(?P<under>[0-9]+)(?![0-9/]|[ ]?[/÷][ ]?[0-9]|\.[0-9]))?
    (?P<scale>(?:{_SCALE}){{1,3}})?
    (?P<close>\s*\))?
    (?P<raised_again>(?:\s*\^\s*|\*\*)[{{(]?[{_MINUS}+]?[0-9])?  # a power of a power, or of (-2)
    """,
    re.VERBOSE,
)
_AFTER = re.compile(
    rf"""
    (?<=[,'’_][0-9]{{3}}),[0-9]                      # 1,234,56
    |(?<=[0-9]{{4}}),[0-9]{{3}}(?![0-9])                    # 1234,567
    |(?<=0)(?<![0-9.]0),[0-9]                           # 0,5
    |(?:,[0-9]{{2}})+,[0-9]{{3}}(?![0-9])                   # 12,34,567
    |(?<=0)[xXbBoO][0-9a-fA-F]                          # 0x10
    |[⁰¹²³⁴-⁹⁻]      # 5²
    |[₀-₉]|_\{{?[0-9]                                   # 101₂
    |\.\([0-9]|\.?\\(?:overline|dot|bar)\b|[\u0304\u0305\u0307]  # 0.(3)
    |\s*(?:[π√∛∜]|\\pi\b|\\sqrt\b)                      # 2π
    |\s*/\s*[{_MINUS}]\s*[0-9]                          # 3/-4
    |[ ]?/[ ]?[0-9]+\.[0-9]                           # 3/4.5
    |,[0-9]+(?:{_SCALE})       # 1,5 million
    |,[0-9]{{1,2}}\s?(?:%|\\%|{_CURRENCY})                # 12,5 %
    |[ ][0-9]{{3}}[.,][0-9]{{1,2}}(?![0-9])                    # 1 234,56
    |(?:[kKM]|bn|mn|tn)(?!\w)|[ ](?:bn|mn|tn|dozens?)(?!\w)  # 2k, 3bn
    |-[0-9]+/[0-9]                                      # 1-1/2
    |\s*[{_MINUS}+]\s*[0-9]*(?:\.[0-9]+)?i\b             # 3+4i
    |\s*(?:\^|\*\*)\s*\{{?\s*[{_MINUS}+]?\s*(?:[a-su-z](?![a-zA-Z])|\\[cdt]?frac|\\pi)   # 2^x
    |[eE][.,][0-9]                                      # 1e.5
    """,
    re.VERBOSE,
)
"""Continuations after digits that make them part of another number, or of none."""
_DIVIDED = re.compile(r"\s*(?:/\s*[{(]|÷\s*[{(]?|/\s*[0-9]+\s*÷)\s*[0-9]")
"""A division after a number, whose quotient is another one: 1/(2), 8÷2÷2, but no date."""
_AFTER_DENOMINATOR = re.compile(
    r",[0-9]|[eE][0-9]|[ ]?[0-9]{3}(?![0-9])|\s*(?:\^|\*\*)|[ ][0-9]+/[0-9]|\s*(?:[π√∛∜]|\\pi\b)"
)
"""Continuations after a denominator that make it another one: 1/1,000, 1/1e3."""
_LATEX_NUMBER = rf"[{_MINUS}+]?(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]+)(?:\.[0-9]+)?"
_FRACTION = re.compile(
    rf"[ ]?\\(?:[cdt]?frac|[sx]frac|nicefrac)\s*(?:\{{\s*(?P<over>{_LATEX_NUMBER})\s*\}}\s*|(?P<over_digit>[0-9])\s*)"
    rf"(?:\{{\s*(?P<under>{_LATEX_NUMBER})\s*\}}|(?P<under_digit>[0-9]))"
    rf"|[ ]?\{{\s*(?P<before_over>{_LATEX_NUMBER})\s*\\over\s*(?P<after_over>{_LATEX_NUMBER})\s*\}}"
)
_WITHIN_FRACTION = re.compile(
    r"\\(?:[cdtsx]?frac|nicefrac|[dt]?binom)\s*(?:\{[^{}]*\}\s*)?(?:\{[^{}]*|[0-9])?$"
)
"""A fraction of LaTeX, or a binomial coefficient, before digits that are in its upper or its lower part."""
_NAMES = "ln|log|lg|exp|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|sqrt"
_FUNCTION = re.compile(
    rf"(?:\\(?:{_NAMES})(?![a-z])\s*(?:_\s*\{{?\w*\}}?)?\s*(?:\\left)?|(?<![\w\\])(?:{_NAMES})\s*(?=[({{]))\s*[({{]?\s*[{_MINUS}+]?\s*$"
    rf"|_\{{\s*$|(?<![A-Za-z])e\s*(?:\^|\*\*)\s*[{{(]?\s*[{_MINUS}+]?\s*$"
)
"""A function before digits that are its argument, or its base: \\ln 2, log(8), \\log_2 8."""
_FACTOR = re.compile(
    rf"\s*(?:\\times|\\cdot|[×·⋅])\s*[({{]?\s*(?:[{_MINUS}+]?\s*\.?[0-9]|\\)|\s*\*\s*[({{]?\s*[0-9]"
    rf"|\s*\*?\s*(?:\\(?:{_NAMES})(?![a-z])|(?:{_NAMES})\()|\s*\\(?:choose|over)\b|i(?!\w)|\s(?:ln|log)\s*[0-9]"
)
"""A factor after a number, whose product is another one: 3\\cdot 4, 2 sqrt(3)."""
_OPERATOR = re.compile(
    rf"""
    [)\]}}]?(?:
      [^\S\n]*\+[^\S\n]*[({{\[]*{_CURRENCY}?[^\S\n]*[{_MINUS}]?\.?(?:[0-9]|\\(?!\)))    # 2+3, (2) + (3)
      |(?:[^\S\n]+[{_MINUS}][^\S\n]*|[{_MINUS}](?:[^\S\n]+|(?=[({{\[])))[({{\[]*{_CURRENCY}?[^\S\n]*[{_MINUS}]?\.?[0-9]  # 2 - 1/2
      |(?<=[0-9])[{_MINUS}]\s*\Z                            # 5-, of accounts
      |[^\S\n]?[x∗][^\S\n]?[({{\[]*[{_MINUS}+]?\.?[0-9]                # 2 x 3
      |\([{_MINUS}+ ]*[0-9.]+\s*[)+*/^{_MINUS}]                 # 2(3), but no note: 5 (3 of them)
      |!!|!\s*[=/*+^{_MINUS}]                              # 5! = 120
      |[^\S\n]*(?:\^|\*\*)[^\S\n]*[({{]?[{_MINUS}+]?(?:\.[0-9]|t(?![A-Za-z]))  # 4^.5
      |[ ]10(?:\s*(?:\^|\*\*)|[⁻⁺⁰¹²³⁴-⁹])                   # 1.5 10^3
      |[^\S\n]*(?:\\?%|//|\\?\b[bp]?mod\b)[^\S\n]*\(?[{_MINUS}]?[0-9]
    )
    |[ ](?:plus|minus|times|over|(?:multiplied|divided)[ ]by)[ ]+(?:the\b|{_CURRENCY}?[{_MINUS}]?\.?[0-9])
    |[ ](?:squared|cubed|factorial|raised[ ]to|to[ ]the[ ](?:power|[0-9])|point[ ](?:[0-9]|{_DIGIT_WORDS}))
    |[ -](?:and|&)[ -](?:an?|{_DIGIT_WORDS})?[ -]?(?:half|(?:{_PARTS})s?)\b|[ ](?:and|&)[ ]+[0-9]+/[0-9]
    |[ -](?:halves|(?:{_PARTS})s)(?![\w-])|(?<=1)[ -](?:half|{_PARTS})(?![\w-])           # 2 thirds
    |\s?(?:[万萬億亿兆千百十만억조천백]|(?i:млн|млрд|тыс|mio|mrd|mill?ionen|milliarden|tausend|millones|mil|mille|grand)(?!\w))
    |-dozens?\b|[ ]?,[ ]0[0-9]{{2}}(?![0-9])|[ ],[0-9]{{3}}(?![0-9])|[ ][0-9]{{2}}[ ][0-9]{{3}}(?![0-9])  # 1, 000
    |\.{{2,3}}[0-9]                                         # 1..5
    |\}}?\s*(?:\{{[,.]\}}|\\?[,.;:!])?\s*\{{\s*[,.]?[0-9]|\}}\s?(?:\\[,;:!]|[,.])?[0-9]     # {{1}},{{000}}
    """,
    re.VERBOSE,
)
"""An operator after a number, in signs or words, whose result is another number, or a group of digits that continues it."""
_OPERATION = re.compile(
    rf"(?:\b(?:(?:square|cube|double|triple|factorial|reciprocal|logarithm|opposite|root)\s+of|twice|sqrt|(?:square|cube)\s+root)"
    rf"\s*[({{]?\s*[{_MINUS}+]?|\b(?:hundred|thousand|[mb]illion)\s+(?:and\s+)?|(?:≠|!=|\\neq?)\s*[{_MINUS}]?)\s*$",
    re.IGNORECASE,
)
"""An operation before digits, in words: the square root of 16, one hundred and 5, ≠ 5."""
_LATEX_GROUP = re.compile(r"(?<=[0-9])(?:,\\!|\{,\}|\\[,;:! ]|~)(?=[0-9]{3}(?![0-9]))")
"""Mark between thousands in LaTeX."""
_BRACKET_SIZE = re.compile(r"\\(?:left|right|[bB]igg?[lr]?)(?=[()\[\]{}|])")
_SUBSCRIPT = re.compile(r"(?<![A-Za-z0-9\\])([A-Za-z])_(?:[0-9]|\{[0-9]+\})(?=\s*(?:=|≈|\\approx))")
"""A variable with an index, before its value: x_1 = 5."""
_LATEX_POINT = re.compile(r"(?<=[0-9])\{([,.])\}(?=[0-9])")
_ROOT = re.compile(r"(?:[√∛∜]|\\sqrt)\s*(?:\[[0-9]*\]?)?\s*[{(]?\s*$")
"""A root before digits: of which they are the radicand, or the degree."""
_INVISIBLE = dict.fromkeys((0xAD, *range(0x200B, 0x2010), 0x2060, 0xFEFF))
_MINUS_WORD = re.compile(rf"\b(?:minus|negative)\s+(?=(?:{_CURRENCY}\s*)?\.?[0-9])", re.IGNORECASE)
_PUNCTUATION = str.maketrans({"，": ",", "．": ".", "٫": ".", "٬": ",", "／": "/", "∕": "÷"})
"""Full-width and Arabic marks within numbers, and signs of division."""
_LONG_SPACE = re.compile(r"(\s{32})\s+")
_LARGEST_EXPONENT = 4000
"""Bound on decimal exponents and on decimals: beyond it, exact arithmetic takes more than an answer is worth."""


def first_number(text: str) -> Fraction | None:
    """Return the first number in `text`, exactly; None if there is none, or if it is out of bounds (1e4001).

    "- 5", "−5" (U+2212), "-$5" and the accountant's "(5)" are -5; "8/10" is 0.8; "6.02 × 10^23" is a power. A hyphen
    within a word or between operands is no sign: "COVID-19" holds 19. "60%" is 60; "10^3" is 1000; "1.000.000" and
    "1.000,5" are grouped by points, "1 000 000" by spaces; "3 million" is 3000000; "3½" is 3.5; "minus 5" is -5; digits may be of any script. None where digits
    have no certain meaning, or are a part of another number ("1,2345", "1.2.3", "2^2^3", "1e2.5", "0x10", "--5", "√16", "2π", "101₂",
    "0.(3)"), a factor ("3 \\cdot 4", "ln(2)"), or an operand ("2+3", "2 - 1/2", "5 squared"; "10-12" is a range).
    """
    # Each of the pattern's spaces would read a long run again from each of its places.
    match = _NUMBER.search(_LONG_SPACE.sub(r"\1", _in_plain_signs(text)))
    if match is None or match["sign"] == "±" or match["unclear"] or match["raised_again"]:
        return None
    if _is_part(match):
        return None
    value = _magnitude(match)
    if value is None:
        return None
    for word in re.findall("[a-z]+", (match["scale"] or "").lower()):
        value *= 10 ** _SCALES[word.removesuffix("s")]
    return -value if _is_negative(match) else value


def exact(number: float) -> Fraction | None:
    """Return an int, or the shortest decimal that reads back as the float; None for NaN and infinities."""
    with contextlib.suppress(TypeError):
        return Fraction(operator.index(number))  # type: ignore[arg-type]
    decimal = Decimal(repr(float(number)))
    return Fraction(decimal) if decimal.is_finite() else None


def _is_part(match: re.Match[str]) -> bool:
    """Return True if the digits are only a part of what is written there, whose value is another one, or uncertain."""
    text = match.string
    if _AFTER.match(text, match.end("digits")) and not match["raised_to"]:
        return True
    if match["e"] and re.match(r"\.[0-9]|[eE][0-9]", text[match.end("e") : match.end("e") + 2]):
        return True  # 1e2.5
    if match["to"]:
        opened = text[match.start("to") - 1] in "{("
        after = text[match.end("to") : match.end("to") + 1]
        if (opened and after not in ("}", ")")) or match["digits"].endswith(".10"):
            return True  # 10^(1/2), and 5.10^3, whose point is a multiplication.
    before = text[: match.start("digits")][-80:]
    if any(kind.search(before) for kind in (_ROOT, _WITHIN_FRACTION, _FUNCTION, _OPERATION)):
        return True
    if _OPERATOR.match(text, match.end()):
        return True
    if re.search(rf"(?:{_CURRENCY})\s*$", before) and re.match(
        r",[0-9]{1,2}(?![0-9,])|[mBbT](?!\w)|[ ](?:[kKmMBbT]|mm|MM)(?!\w)",
        text[match.end("digits") :],
    ):
        return True  # $1,23, $5m and $5 M
    if re.search(rf"(?:\||\\lvert)\s*[{_MINUS}]\s*$", before) and re.match(
        r"\s*(?:\||\\rvert)", text[match.end() :]
    ):
        return True  # |-5|
    after = text[match.end("under") if match["under"] else match.end() :][:80]
    if (_AFTER_DENOMINATOR if match["under"] else _DIVIDED).match(after) or _FACTOR.match(after):
        return True
    if match["dotted"] and re.match(r"0[0-9]*\.", match["dotted"]):
        return True
    if re.match(
        rf"\s*\^\s*[{{(]?\s*[{_MINUS}+]?\s*[0-9⁰¹²³⁴-⁹⁻]", text[match.end() : match.end() + 80]
    ):
        return True  # 10^{ 2 } and 10^ - 3
    if match["scale"] and re.match(
        r"\s*(?:/|(?:and\s+)?[0-9])", text[match.end() : match.end() + 80]
    ):
        return True  # 3 million 500 thousand
    sign = match["sign"]
    return (
        bool(sign) and sign in _MINUS and text[: match.start("sign")].rstrip("(")[-1:] in (*_MINUS,)
    )


def _in_plain_signs(text: str) -> str:
    """Return the text with ASCII digits, "-5" in place of "minus 5", and "3 1/2" in place of "3½"."""
    if not text.isascii():
        text = "".join(
            str(unicodedata.decimal(letter)) if letter.isdecimal() else letter for letter in text
        ).translate(_PUNCTUATION | _INVISIBLE)
    text = _LATEX_POINT.sub(".", _LATEX_GROUP.sub(",", _BRACKET_SIZE.sub("", text)))
    text = _SUBSCRIPT.sub(r"\1", text.replace("\\div", "÷"))
    text = _MINUS_WORD.sub("-", _FRACTION.sub(_as_fraction, text))
    plain = _VULGAR.sub(lambda match: f" {unicodedata.normalize('NFKC', match[0])}", text)
    return _BEFORE_FRACTION.sub(r"\1 ", plain).replace("\u2044", "/")


def _as_fraction(match: re.Match[str]) -> str:
    """Return a fraction of LaTeX as integers, 3/4; unchanged where the sign before it would be a second one."""
    over, under = (
        Fraction(re.sub(f"[{_MINUS}]", "-", part.replace(",", "")))
        if len(part) <= _LARGEST_EXPONENT
        else None
        for part in (
            match["over"] or match["over_digit"] or match["before_over"],
            match["under"] or match["under_digit"] or match["after_over"],
        )
    )
    if over is None or not under:
        return match[0]
    value = over / under
    before = match.string[: match.start()].rstrip()[-1:]
    if value < 0 and (before in (*_MINUS,) or before.isdecimal()):
        return match[0]
    return f" {value.numerator}/{value.denominator}"


def _magnitude(match: re.Match[str]) -> Fraction | None:
    written = match["digits"]
    if match["dotted"]:
        written = written.replace(".", "").replace(",", ".")
    integer, point, decimals = re.sub(f"{_GROUP}| ", "", written).partition(".")
    digits = f"{integer}{point}{decimals[:_LARGEST_EXPONENT]}"
    exponent = match["e"] or match["power"] or (match["raised"] or "").translate(_SUPERSCRIPT)
    exponent = re.sub(f"[{_MINUS}]", "-", exponent or "0")
    number = Decimal(digits)
    if len(exponent) > 6 or abs(number.adjusted() + int(exponent)) > _LARGEST_EXPONENT:
        return Fraction(0) if number.is_zero() else None
    value = _power(Fraction(number) * Fraction(10) ** int(exponent), match)
    if value is None:
        return None
    under = match["under"]
    if under is None:
        return value
    if len(under) > _LARGEST_EXPONENT or len(match["over"] or "") > _LARGEST_EXPONENT:
        return None
    if int(under) == 0:
        return None
    over = match["over"]
    return value / int(under) if over is None else value + Fraction(int(over), int(under))


def _power(base: Fraction, match: re.Match[str]) -> Fraction | None:
    """Return `base` to the power that is written after it; None out of bounds."""
    written = match["to"] or (match["raised_to"] or "").translate(_SUPERSCRIPT)
    if not written:
        return base
    if "." in written:  # A root, which is no fraction.
        return None
    exponent = int(re.sub(f"[{_MINUS}]", "-", written[:8]))
    bits = base.numerator.bit_length() + base.denominator.bit_length()
    if abs(exponent) * bits > 4 * _LARGEST_EXPONENT or (base == 0 and exponent < 0):
        return None
    return base**exponent


def _is_negative(match: re.Match[str]) -> bool:
    sign = match["sign"]
    if sign is None:
        wrapped = match["open"] is not None and match["close"] is not None
        before = match.string[: match.start()].rstrip()[-1:]
        # Accounts hold amounts, no fractions and powers.
        is_amount = not (match["under"] or match["e"] or match["power"] or match["raised"])
        return wrapped and (
            before in (*_MINUS,) or (is_amount and before in ("", "=", ":", *"$€£¥"))
        )
    before = match.string[: match.start("sign")]
    spaced = match.string[match.end("sign")].isspace()
    bullet = spaced and before.strip() and not before.rpartition("\n")[2].strip()
    if sign == "+" or bullet:
        return False
    # "10-12" and "x - 5" hold an operator, "The answer - 5" a dash.
    operand = before.rstrip()[-1:] if spaced else before[-1:]
    return not (operand.isalnum() or operand in (*")]%",))
