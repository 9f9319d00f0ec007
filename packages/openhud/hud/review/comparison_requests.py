"""Requests to a model that compares runs of one task, and its replies as values from 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hud.eval.run import Run
from hud.graders.quoted_json import object_with
from hud.review.claims import UnreadableReply
from hud.review.judge_method import Method
from hud.review.reviewer import DATA
from hud.review.shown_run import shortened, shown_steps
from hud.trace import Step

DEFAULT_CRITERIA = (("It does what the task asks for.", 3.0), ("It takes no needless steps.", 1.0))
_REPLIES: dict[Method, str] = {
    "scores": """Score each run from 0 to 1 on each criterion, in their order. Runs that differ in quality get different scores: a large
difference for one that reaches its goal over one that does not, a small one between runs that are nearly as good.

Reply with one JSON object and nothing else:
{"runs": [{"run": number, "scores": [a number for each criterion], "reason": "one short sentence"}]}""",
    "ranking": """Rank the runs by the criteria, the best first.

Reply with one JSON object and nothing else:
{"ranking": [the number of every run], "reason": "one short sentence"}""",
    "pairwise": """Say which of the two runs is better by the criteria.

Reply with one JSON object and nothing else:
{"better": 1, 2, or 0 if they are equally good, "reason": "one short sentence"}""",
}


def instructions(method: Method, criteria: Sequence[tuple[str, float]]) -> str:
    """Return the instructions of a comparison."""
    listed = "\n".join(
        f"{number}. {text}" + ("" if weight == 1 else f" (weight {weight:g})")
        for number, (text, weight) in enumerate(criteria, 1)
    )
    return (
        "You compare runs of an agent at one task. The user's message is one JSON object: the task, and the numbered runs with "
        f"their steps. {DATA}\n\nCriteria:\n{listed}\n\n{_REPLIES[method]}"
    )


def document(runs: Sequence[Run], most: int) -> dict[str, Any]:
    """Return runs as one JSON object, in this order, each in at most about `most` characters; grades are not shown."""
    shown = [
        {
            "run": number,
            "steps": shown_steps(_played(run), most).entries,
            "answer": shortened(run.content or ""),
        }
        for number, run in enumerate(runs, 1)
    ]
    return {"task": runs[0].prompt_text, "runs": shown}


def _played(run: Run) -> list[Step]:
    """Return the steps of a run after its prompt, without those of its grading."""
    steps = [step for step in run.trace.steps if step.source != "task"]
    return steps[1:] if steps and steps[0].source == "user" else steps


def values_of(
    reply: str, method: Method, weights: Sequence[float], count: int
) -> tuple[list[float], list[str]]:
    """Return the value of each of `count` runs, 0 to 1, and the reasons. Raises `UnreadableReply`."""
    key: dict[Method, str] = {"scores": "runs", "ranking": "ranking", "pairwise": "better"}
    answer = object_with(key[method], reply)
    if answer is None:
        raise UnreadableReply(f"it holds no one object with {key[method]!r}")
    reason = [str(answer.get("reason") or "")] * count
    try:
        if method == "scores":
            return _scores(answer["runs"], weights, count)
        if method == "ranking":
            return _ranked(answer["ranking"], count), reason
        return {1: [1.0, 0.0], 2: [0.0, 1.0], 0: [0.5, 0.5]}[answer["better"]], reason
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableReply(f"its {key[method]!r} do not fit {count} runs: {error}") from None


def _scores(rows: Any, weights: Sequence[float], count: int) -> tuple[list[float], list[str]]:
    by_run = {row["run"]: row for row in rows}
    if len(rows) != count or sorted(by_run) != list(range(1, count + 1)):
        raise ValueError("a run is missing, or stands twice")
    values, reasons = [], []
    for number in range(1, count + 1):
        scores = [float(score) for score in by_run[number]["scores"]]
        if not all(math.isfinite(score) and 0 <= score <= 1 for score in scores):
            raise ValueError("a score is not from 0 to 1")
        total = sum(weight * score for weight, score in zip(weights, scores, strict=True))
        values.append(total / sum(weights))
        reasons.append(str(by_run[number].get("reason") or ""))
    return values, reasons


def _ranked(ranking: Any, count: int) -> list[float]:
    if sorted(ranking) != list(range(1, count + 1)):
        raise ValueError("a run is missing, or stands twice")
    return [1 - ranking.index(number) / (count - 1) for number in range(1, count + 1)]
