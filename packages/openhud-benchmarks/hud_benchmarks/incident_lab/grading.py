"""What answers are worth."""

from __future__ import annotations

from lab.facts import Fact
from lab.finding import CAUSE, CULPRIT, SERVICE, Finding, parse_finding, parse_object

from hud.graders import EvaluationResult, SubScore

SIGN, DETAIL = 0.3, 0.7


def grade_finding(answer: str, truth: Finding) -> EvaluationResult:
    """Hold an answer against the fault: nothing without the right service, and no culprit without the cause."""
    found = parse_finding(answer)
    service = found is not None and found.service == truth.service
    cause = service and found is not None and found.cause == truth.cause
    culprit = cause and found is not None and found.culprit == truth.culprit
    return _result(
        found is not None,
        {"service": (service, SERVICE), "cause": (cause, CAUSE), "culprit": (culprit, CULPRIT)},
    )


def grade_report(answer: str, truth: Fact) -> EvaluationResult:
    """Hold a specialist's report against the facts: no detail without the right sign."""
    told = parse_object(answer, ("sign", "detail"))
    sign = told is not None and told["sign"] == truth.sign
    detail = sign and told is not None and told["detail"] == truth.detail
    if truth.detail == "none":  # There is one thing to say.
        return _result(told is not None, {"report": (detail, 1.0)})
    return _result(told is not None, {"sign": (sign, SIGN), "detail": (detail, DETAIL)})


def _result(readable: bool, parts: dict[str, tuple[bool, float]]) -> EvaluationResult:
    return EvaluationResult(
        reward=round(sum(weight for right, weight in parts.values() if right), 6),
        content="" if readable else "The answer is not the one JSON object that was asked for.",
        subscores=[
            SubScore(name=name, value=float(right), weight=weight)
            for name, (right, weight) in parts.items()
        ],
    )
