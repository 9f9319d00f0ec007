"""Score of an answer: the package's, behind checks of what the package would execute or fails to check."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

from reasoning_gym.utils import extract_answer

from hud.benchmarks.benchmark import Split
from hud.environment.processes.worker_threads import in_thread
from hud_benchmarks.reasoning_gym.expressions import is_arithmetic, is_expression, is_plain
from hud_benchmarks.reasoning_gym.items import data_set, item

SECONDS = 20.0
"""Limit of scoring one answer; sympy's simplification of an agent's expression may take for ever."""
LONGEST = 20_000
"""Characters of an answer; the package's own have at most a tenth."""
_HUGE = re.compile(r"[\d.]e[+-]?[\d_]{4,}", re.IGNORECASE)
"""A number whose exact value takes more memory or time than there is: `Fraction("1e999999999")`."""

_CHECKS: dict[str, Callable[[str], object]] = {
    **dict.fromkeys(("binary_matrix", "n_queens", "spiral_matrix", "string_insertion"), is_plain),
    **dict.fromkeys(
        ("intermediate_integration", "polynomial_multiplication", "simple_integration"),
        is_expression,
    ),
    **dict.fromkeys(("countdown", "puzzle24"), is_arithmetic),
    # The package's scorer finds no distance between a number and NaN.
    "complex_arithmetic": re.compile(r"(?!.*(?:nan|inf)).*", re.IGNORECASE | re.DOTALL).fullmatch,
    # The package's scorer skips what is no move, so that it finds a solution in any text.
    "sokoban": re.compile(r"[LDUR]+", re.IGNORECASE).fullmatch,
}
"""Generators whose scorer evaluates the answer as Python, or takes too much, and what answers may be."""


async def score(generator: str, split: Split, index: int, text: str) -> tuple[float, str | None]:
    """Return the score of what an agent said, 0 to 1, and a reason where the package was not asked.

    The answer is the last that stands between `<answer>` and `</answer>`, or the whole text.
    """
    tagged = extract_answer(text)
    answer = text.strip() if tagged is None else tagged
    if not answer:
        return 0.0, "There is no answer."
    if len(answer) > LONGEST or _HUGE.search(answer):
        return 0.0, f"An answer has at most {LONGEST:,} characters, and no exponent of four digits."
    if generator == "game_of_life_halting":
        # The package's scorer takes any text for true.
        right = str(item(generator, split, index)["answer"])
        return float(answer.casefold() == right.casefold()), None
    check = _CHECKS.get(generator)
    if check is None:
        return _scored(generator, split, index, answer), None
    if not check(answer):
        return 0.0, "The answer is not in the form that was asked for."
    if generator == "puzzle24" and _numbers(answer) != sorted(
        item(generator, split, index)["metadata"]["numbers"]
    ):
        # The package's scorer takes any four numbers that make 24.
        return 0.0, "The answer does not use the given numbers, each once."
    request = {"generator": generator, "split": split, "index": index, "answer": answer}
    try:
        async with asyncio.timeout(SECONDS):
            return await in_thread(_scored, request), None
    except TimeoutError:
        return 0.0, f"The answer took more than {SECONDS:g} s to check."


def _scored(generator: str, split: Split, index: int, answer: str) -> float:
    try:
        package_score = float(
            data_set(generator, split).score_answer(answer, item(generator, split, index))
        )
    except Exception:
        # Scorers parse answers, and some raise over what they cannot parse: that is a wrong answer.
        return 0.0
    return min(max(package_score, 0.0), 1.0)


def _numbers(answer: str) -> list[int]:
    return sorted(map(int, re.findall(r"\d+", answer)))
