"""Checks of text that the package's scorers evaluate as Python: literals, arithmetic, expressions of calculus.

`eval` and `sympy.parse_expr` execute what they are given, so an answer reaches them only where every node of it is
known to be harmless and its numbers stay small enough to compute.
"""

from __future__ import annotations

import ast
from collections.abc import Set

LONGEST = 2000
"""Characters of an expression."""
LARGEST = 10**12
"""Largest number in an expression."""
LARGEST_EXPONENT = 100
DEEPEST_POWER = 2
"""Nesting depth of powers: (x**2 + 1)**3 is 2."""

_NAMES = "sin cos tan cot sec csc asin acos atan acot sinh cosh tanh asinh acosh atanh exp log ln sqrt Abs erf"
FUNCTIONS = frozenset(_NAMES.split())
CONSTANTS = frozenset({"pi", "E", "I"})
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)


def is_plain(answer: str) -> bool:
    """Return True for a Python literal, and for text that is no Python expression at all: nothing is executed."""
    try:
        ast.literal_eval(answer.strip())
    except SyntaxError:
        return True
    except (ValueError, TypeError, MemoryError, RecursionError):
        # A name alone, such as a word of letters, is an expression, and evaluating it runs nothing.
        return answer.strip().isidentifier()
    return True


def is_arithmetic(answer: str) -> bool:
    """Return True for numbers, + - * / and parentheses."""
    return _is_harmless(answer, frozenset(), variables=False, powers=False)


def is_expression(answer: str) -> bool:
    """Return True for arithmetic, powers, elementary functions and variables of one letter."""
    return _is_harmless(answer, FUNCTIONS, variables=True, powers=True)


def _is_harmless(answer: str, functions: Set[str], *, variables: bool, powers: bool) -> bool:
    if len(answer) > LONGEST:
        return False
    try:
        tree = ast.parse(answer.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False

    def is_known(node: ast.expr, depth: int) -> bool:
        match node:
            case ast.Constant(value=int() | float() as value):
                return not isinstance(value, bool) and abs(value) <= LARGEST
            case ast.Name(id=name):
                return variables and (name in CONSTANTS or (len(name) == 1 and name.isalpha()))
            case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
                return is_known(operand, depth)
            case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
                return (
                    powers
                    and depth < DEEPEST_POWER
                    and is_known(base, depth + 1)
                    and is_known(exponent, DEEPEST_POWER)
                    and _largest(exponent) <= LARGEST_EXPONENT
                )
            case ast.BinOp(left=left, op=operator, right=right):
                return (
                    isinstance(operator, _OPERATORS)
                    and is_known(left, depth)
                    and is_known(right, depth)
                )
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return name in functions and all(
                    is_known(argument, depth) for argument in arguments
                )
        return False

    try:
        return is_known(tree, 0)
    except RecursionError:
        return False


def _largest(node: ast.expr) -> float:
    """Return the largest number that stands in an expression; products of exponents are bounded with them."""
    product = 1.0
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, int | float):
            product *= max(1.0, abs(inner.value))
    return product
