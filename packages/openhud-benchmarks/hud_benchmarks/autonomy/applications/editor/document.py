"""`Edit`: a document to be edited, what it is to become, and how much of that was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hud.graders import EvaluationResult

_LONGEST = 1 << 20
"""Characters of a text that is graded: copies of copies would fill the memory with lines."""


@dataclass(frozen=True)
class Edit:
    """An edit to be made: the request, the document before and after it, and other open files."""

    request: str
    before: str
    wanted: str
    others: Mapping[str, str] = field(default_factory=dict)
    """Contents of files to be read, and left as they are, by name."""


def grade_lines(before: str, wanted: str, left: str) -> EvaluationResult:
    """Grade a text by its lines: 1 where it is what was wanted, but for line feeds at its end.

    Else the share of the lines to be added and to be removed, wherever they stand; 0 where others were, and for a text of
    more than a million characters.
    """
    if len(left) > _LONGEST:
        return EvaluationResult(reward=0.0, content="The document is too long to be graded.")
    start, goal, left_lines = (text.rstrip("\n").split("\n") for text in (before, wanted, left))
    expected, made = _changes(start, goal), _changes(start, left_lines)
    right, other = (expected & made).total(), (made - expected).total()
    info = {"asked": expected.total(), "made": right, "damaged": other}
    if left_lines == goal:
        return EvaluationResult(reward=1.0, info=info)
    # One more than was asked for, as the lines may all be there in another order.
    reward = 0.0 if other else right / (expected.total() + 1)
    return EvaluationResult(reward=reward, content="The document is not as asked for.", info=info)


def _changes(before: list[str], after: list[str]) -> Counter[tuple[str, str]]:
    old, new = Counter(before), Counter(after)
    removed = {("removed", line): count for line, count in (old - new).items()}
    return Counter({**removed, **{("added", line): count for line, count in (new - old).items()}})
