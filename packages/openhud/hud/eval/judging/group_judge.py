"""The port of judges of groups: all runs of a task are graded together, once the last of them has ended.

The environment's own grade stays on record as a part of the grade. Only measured runs are judged: a run that its agent failed keeps its
reward 0, and one that was not measured has none. A judge that fails is a failure of infrastructure, never a reward of 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hud.errors import located
from hud.eval.grade import Grade
from hud.trace import Step, TaskCall

if TYPE_CHECKING:
    from hud.eval.run import Run

PART = "judge"
"""Name of the judge's part of a grade."""


@dataclass(frozen=True)
class Judgement:
    """A judge's reward of one run."""

    reward: float
    """0 to 1."""
    info: dict[str, Any] = field(default_factory=dict)
    """Reasons, kept with the grade."""


class GroupJudge(Protocol):
    """A judge of groups."""

    share: float
    """Share of the judge in the reward, above 0 and at most 1; the rest is the environment's grade."""

    async def judge(self, runs: Sequence[Run]) -> list[Judgement]:
        """Return a judgement of each run of a group, in their order. Raises any error if it has none."""


class JudgedGroups:
    """The groups of a batch, each judged when its last planned run has ended."""

    def __init__(self, judge: GroupJudge, groups: Iterable[str]) -> None:
        """`groups`: the group id of each planned run."""
        self._judge = judge
        self._left = Counter(groups)
        self._waiting: dict[str, list[Run]] = {}

    async def ended(self, run: Run) -> list[Run]:
        """Take a run that has ended; return the runs of its group if they are now graded, else none."""
        group = run.group_id or ""
        self._waiting.setdefault(group, []).append(run)
        self._left[group] -= 1
        if self._left[group]:
            return []
        runs = self._waiting.pop(group)
        await grade_group(self._judge, runs)
        return runs

    async def end(self, *, cancelled: bool) -> list[Run]:
        """Grade the groups of a batch that was stopped before they were complete; without a judgement if it was cancelled."""
        graded = []
        for group in list(self._waiting):
            runs = self._waiting.pop(group)
            if cancelled:
                measured = [run for run in runs if run.measured]
                _fail(measured, "The job was cancelled before the group was judged.")
                _report(measured)
            else:
                await grade_group(self._judge, runs)
            graded += runs
        return graded


async def grade_group(judge: GroupJudge, runs: Sequence[Run]) -> None:
    """Grade the measured runs of a group by a judge, and record their end."""
    measured = [run for run in runs if run.measured]
    try:
        if measured:
            judgements = await judge.judge(measured)
            _check(judgements, len(measured))
            for run, judgement in zip(measured, judgements, strict=True):
                _apply(run, judgement, judge.share)
    except BaseException as error:
        _fail(measured, f"The judge failed: {_described(error)}")
        if not isinstance(error, Exception):
            raise
    finally:
        _report(measured)


def _check(judgements: Sequence[Judgement], count: int) -> None:
    if len(judgements) != count:
        raise ValueError(f"it graded {len(judgements)} of {count} runs")
    for judgement in judgements:
        if not (math.isfinite(judgement.reward) and 0 <= judgement.reward <= 1):
            raise ValueError(f"its reward is {judgement.reward}, and not from 0 to 1")


def _apply(run: Run, judgement: Judgement, share: float) -> None:
    """Set the grade of a run: the judge's share, and the environment's."""
    own = run.reward or 0.0
    frame: dict[str, Any] = {
        **{name: value for name, value in run.grade.raw.items() if name != "reward"},
        "score": share * judgement.reward + (1 - share) * own,
        "subscores": [
            {"name": PART, "value": judgement.reward, "weight": share, "info": judgement.info},
            {
                "name": "environment",
                "value": own,
                "weight": 1 - share,
                "children": run.grade.subscores or None,
            },
        ],
    }
    run.grade = Grade.from_dict(frame)
    call = TaskCall(phase="evaluate", name=PART, arguments={}, result=frame)
    run.record(Step(source="task", task_call=call))


def _fail(runs: Sequence[Run], problem: str) -> None:
    for run in runs:
        run.fail("infrastructure", problem)


def _report(runs: Sequence[Run]) -> None:
    for run in runs:
        run.live.judged = False
        run.recorder.run_ended(run)


def _described(error: BaseException) -> str:
    return located(error) if not str(error) else str(error)
