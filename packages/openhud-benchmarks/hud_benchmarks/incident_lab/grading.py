"""Rewards of answers and of specialists' reports."""

from __future__ import annotations

from hud.graders import EvaluationResult, SubScore
from hud_benchmarks.incident_lab.lab.facts import Fact
from hud_benchmarks.incident_lab.lab.finding import (
    CAUSE,
    CULPRIT,
    SERVICE,
    Finding,
    parse_finding,
    parse_object,
)

SIGN, DETAIL = 0.3, 0.7


def grade_finding(answer: str, truth: Finding) -> EvaluationResult:
    """Grade an answer: nothing without the right service, and no culprit without the cause."""
    finding = parse_finding(answer)
    service = finding is not None and finding.service == truth.service
    cause = service and finding is not None and finding.cause == truth.cause
    culprit = cause and finding is not None and finding.culprit == truth.culprit
    return _result(
        finding is not None,
        {"service": (service, SERVICE), "cause": (cause, CAUSE), "culprit": (culprit, CULPRIT)},
    )


def grade_report(answer: str, truth: Fact) -> EvaluationResult:
    """Grade a specialist's report: no detail without the right sign."""
    report = parse_object(answer, ("sign", "detail"))
    sign = report is not None and report["sign"] == truth.sign
    detail = sign and report is not None and report["detail"] == truth.detail
    if truth.detail == "none":  # There is one thing to say.
        return _result(report is not None, {"report": (detail, 1.0)})
    return _result(report is not None, {"sign": (sign, SIGN), "detail": (detail, DETAIL)})


def _result(readable: bool, parts: dict[str, tuple[bool, float]]) -> EvaluationResult:
    return EvaluationResult(
        reward=round(sum(weight for right, weight in parts.values() if right), 6),
        content="" if readable else "The answer is not the one JSON object that was asked for.",
        subscores=[
            SubScore(name=name, value=float(right), weight=weight)
            for name, (right, weight) in parts.items()
        ],
    )
