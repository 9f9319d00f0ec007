"""Grading rules: a template's last yield as data, where it is a comparison of the answer with values of the task.

    answer = yield "..."
    yield 0.8 * exact_match(answer, city) + 0.2 * contains(answer, "France")

The comparisons of `hud.graders`, `==`, `in`, a choice between two numbers, sums and products with numbers have a rule; all
else is code that only its environment can execute.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from hud import exact_json, graders
from hud.errors import UsageError

COMPARISONS: dict[str, Callable[..., float]] = {
    function.__name__: function
    for function in (
        graders.exact_match,
        graders.contains,
        graders.contains_any,
        graders.contains_all,
        graders.numeric_match,
        graders.f1_score,
    )
}
Rule = dict[str, Any]
"""`{"grader", "arguments", "options"}`, or `{"sum": [[weight, rule], ...], "plus": number}`."""


class NoRuleError(UsageError):
    """A grader that has no rule; the message is the reason."""


@dataclass(frozen=True)
class _Reader:
    """Reader of one template's grading expression, with the values that its names have in a run."""

    answer: str
    frame: FrameType

    def rule(self, node: ast.expr) -> Rule:
        """Return the rule of an expression. Raises `NoRuleError`."""
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compare(node.left, node.ops[0], node.comparators[0])
        if isinstance(node, ast.IfExp):
            high, low = self._number(node.body), self._number(node.orelse)
            return _weighted([(high - low, self._condition(node.test))], low)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return _weighted([(1.0, self.rule(node.left)), (1.0, self.rule(node.right))])
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            weight, rest = (
                (node.right, node.left) if self._uses_answer(node.left) else (node.left, node.right)
            )
            return _weighted([(self._number(weight), self.rule(rest))])
        if not self._uses_answer(node):
            return _weighted([], self._number(node))
        raise NoRuleError(f"its grader is code: {ast.unparse(node)}")

    def _condition(self, node: ast.expr) -> Rule:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return self._compare(node.left, node.ops[0], node.comparators[0])
        raise NoRuleError(f"its grader is code: {ast.unparse(node)}")

    def _call(self, node: ast.Call) -> Rule:
        called = None if self._uses_answer(node.func) else self._value(node.func)
        if called is float and len(node.args) == 1 and not node.keywords:
            return self.rule(node.args[0])
        named = next(
            (name for name, comparison in COMPARISONS.items() if comparison is called), None
        )
        keywords = {word.arg: word.value for word in node.keywords if word.arg}
        first = node.args[0] if node.args else keywords.pop("answer", None)
        if named is None or not self._is_answer(first) or len(keywords) < len(node.keywords) - 1:
            raise NoRuleError(f"its grader is code: {ast.unparse(node)}")
        return {
            "grader": named,
            "arguments": [self._value(argument) for argument in node.args[1:]],
            "options": {name: self._value(argument) for name, argument in keywords.items()},
        }

    def _compare(self, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Rule:
        if isinstance(operator, ast.Eq):
            if self._is_answer(right):
                left, right = right, left
            if self._is_answer(left):
                return _comparison("exact_match", self._text(right), normalize_text=False)
        if isinstance(operator, ast.In) and self._is_answer(right):
            return _comparison("contains_all", [self._text(left)], case_sensitive=True)
        raise NoRuleError(
            f"its grader is code: {ast.unparse(ast.Compare(left, [operator], [right]))}"
        )

    def _is_answer(self, node: ast.expr | None) -> bool:
        return isinstance(node, ast.Name) and node.id == self.answer

    def _uses_answer(self, node: ast.expr) -> bool:
        return any(
            isinstance(inner, ast.Name) and inner.id == self.answer for inner in ast.walk(node)
        )

    def _number(self, node: ast.expr) -> float:
        value = self._value(node)
        if isinstance(value, int | float):
            return float(value)
        raise NoRuleError(f"its grader is code: {ast.unparse(node)} is no number")

    def _text(self, node: ast.expr) -> str:
        value = self._value(node)
        if isinstance(value, str):
            return value
        raise NoRuleError(f"its grader compares the answer with {value!r}, which is no text")

    def _value(self, node: ast.expr) -> Any:
        """Return the value of an expression without the answer, in the run whose grader is read."""
        if self._uses_answer(node) or any(
            isinstance(inner, ast.Await | ast.Yield | ast.NamedExpr) for inner in ast.walk(node)
        ):
            raise NoRuleError(f"its grader is code: {ast.unparse(node)}")
        code = compile(ast.Expression(node), "<grader>", "eval")
        # The template's own code, which the run would execute a moment later.
        return eval(code, self.frame.f_globals, dict(self.frame.f_locals))  # noqa: S307


def rule_of(function: Callable[..., Any], frame: FrameType) -> Rule:
    """Return the rule by which a template grades the run that is suspended at its first yield.

    Raises `NoRuleError` where the grader has none.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError) as error:
        raise NoRuleError("its source cannot be read") from error
    (definition,) = tree.body
    assert isinstance(definition, ast.AsyncFunctionDef)
    answer, last = _ending(definition.body)
    rule = _Reader(answer, frame).rule(last)
    try:
        exact_json.dumps(rule)
    except TypeError as error:
        raise NoRuleError(f"its grader compares with a value that is no JSON: {error}") from error
    return rule


def _ending(body: list[ast.stmt]) -> tuple[str, ast.expr]:
    """Return the name of the answer, and the expression of the last yield, which must come right after it."""
    if len(body) >= 2:
        answer_line, graded = body[-2:]
        if (
            isinstance(answer_line, ast.Assign)
            and isinstance(answer_line.value, ast.Yield)
            and isinstance(answer_line.targets[0], ast.Name)
            and isinstance(graded, ast.Expr)
            and isinstance(graded.value, ast.Yield)
            and graded.value.value is not None
        ):
            return answer_line.targets[0].id, graded.value.value
    raise NoRuleError("its grader has further statements between the answer and the reward")


def _comparison(grader: str, expected: Any, **options: Any) -> Rule:
    return {"grader": grader, "arguments": [expected], "options": options}


def _weighted(parts: list[tuple[float, Rule]], plus: float = 0.0) -> Rule:
    return {"sum": [[weight, rule] for weight, rule in parts], "plus": plus}
