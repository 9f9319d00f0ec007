"""Arithmetic of a tool: numbers, + - * / and parentheses."""

from __future__ import annotations

import ast
import operator

from hud.errors import UsageError

_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
MOST_CHARACTERS = 1_000


def evaluated(expression: str) -> float:
    """Return the value of an expression, rounded to cents; raises `UsageError` for anything else."""
    if len(expression) > MOST_CHARACTERS:
        raise UsageError(f"An expression has at most {MOST_CHARACTERS:,} characters.")
    try:
        return round(_value(ast.parse(expression.strip(), mode="eval").body), 2)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"{expression!r} cannot be computed: {error}") from None


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value: float = _OPERATORS[type(node.op)](_value(node.left), _value(node.right))
        return value
    raise ValueError("there may be numbers, + - * / and parentheses")
