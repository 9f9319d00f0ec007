"""The promotion gate: rules by which a candidate becomes the head, and their reasons as text.

A candidate is promoted if (1) the 95% interval of its difference from the head lies above `min_gain` over all tasks, and
(2) in every critical subset it lies at or above `-max_regression`. All of these must hold, so their number does not raise
the chance of a false promotion. (3) The shares of unmeasured runs of both must not differ: whose failing runs get no reward
looks better than it is. Claims about subsets, that they got better or worse, are corrected by Holm's method. For a
series of candidates, as in a training run, the intervals are widened by Bonferroni's method. The intervals and tests are
those of `paired_differences` and `unmeasured_runs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, Literal

from hud.errors import UsageError
from hud.eval.results.intervals import with_interval
from hud.eval.results.paired_differences import (
    SIGNIFICANCE,
    Difference,
    Needed,
    Pairing,
    Rewards,
    fewest_units,
    pair,
)
from hud.eval.results.task_families import few_families
from hud.eval.results.unmeasured_runs import UnmeasuredRuns

MOST_VALUES = 20
"""Maximum distinct values of a column that defines subsets."""
_MOST_NEEDED = 10_000

Subsets = Mapping[str, Sequence[str]]
"""Slugs of the tasks of each subset, by its name, `COLUMN=VALUE`."""


@dataclass(frozen=True)
class Gate:
    """Conditions of a promotion."""

    min_gain: float = 0.0
    """Mean difference of rewards to exceed, over all tasks; at least 0."""
    max_regression: float = 0.05
    """Largest allowed loss of mean reward in a critical subset."""
    critical: tuple[str, ...] = ()
    """Subsets that must not regress, as `COLUMN=VALUE`."""
    looks: int = 1
    """Number of comparisons of a series, at least 1, by which the error rate is divided."""

    def __post_init__(self) -> None:
        """Raise `UsageError` for contradictory conditions, and for a `min_gain` that would promote a loss."""
        if not 0 <= self.min_gain < inf:
            raise UsageError(
                f"min_gain is a gain, at least 0, not {self.min_gain:g}. A head moves to a worse checkpoint by --force alone."
            )
        if not 0 <= self.max_regression < inf:
            raise UsageError(f"max_regression is a loss, at least 0, not {self.max_regression:g}.")
        if self.looks < 1:
            raise UsageError(f"looks is a number of comparisons, at least 1, not {self.looks}.")
        for name in self.critical:
            column, equals, value = name.partition("=")
            if not (column and equals and value):
                raise UsageError(f"A critical subset is COLUMN=VALUE, not {name!r}.")

    def check(self, subsets: Subsets) -> None:
        """Raise `UsageError` for a critical subset without tasks."""
        for name in self.critical:
            if not subsets.get(name):
                names = ", ".join(subsets) or "none: its tasks have no columns"
                raise UsageError(f"No task has {name}; the subsets of these tasks are {names}.")


@dataclass(frozen=True)
class Decision:
    """The gate's decision about a candidate, with its evidence."""

    verdict: Literal["better", "worse", "unclear", "unknown"]
    """`better`: promoted. `worse`: worse overall, or in a critical subset. `unknown`: no task was played by both."""
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    """Observations without effect on the decision."""
    pairing: Pairing
    unmeasured: UnmeasuredRuns

    @property
    def promoted(self) -> bool:
        """True if the candidate may become the head."""
        return self.verdict == "better"

    @property
    def sentence(self) -> str:
        """The reasons in one line."""
        return " ".join(self.reasons)

    @property
    def comparison(self) -> dict[str, Any] | None:
        """Tasks and difference, as plain data."""
        overall = self.pairing.overall
        return None if overall is None else {"tasks": overall.tasks, "difference": asdict(overall)}

    def as_dict(self) -> dict[str, Any]:
        """Return the decision as plain data, without its tasks."""
        pairing = self.pairing
        return {
            "verdict": self.verdict,
            "promoted": self.promoted,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            "overall": None if pairing.overall is None else difference_shown(pairing.overall),
            "subsets": [difference_shown(subset) for subset in pairing.subsets],
            "unmeasured": self.unmeasured.as_dict(),
        }


def decide(
    head: Rewards, candidate: Rewards, gate: Gate | None = None, subsets: Subsets | None = None
) -> Decision:
    """Decide on a candidate by the tasks that it and the head played. Raises `UsageError` for an empty critical subset."""
    gate, subsets = gate or Gate(), subsets or {}
    gate.check(subsets)
    pairing = pair(head, candidate, subsets, gate.looks)
    unmeasured = UnmeasuredRuns.of(head, candidate)
    if pairing.overall is None:
        why = "No task is recorded of both; compare them first."
        return Decision("unknown", (why,), _unmeasured_notes(unmeasured), pairing, unmeasured)
    verdict, reason = _gain(pairing.overall, gate)
    verdicts, reasons = {verdict}, [reason]
    note = few_families(change.slug for change in pairing.changes)
    notes = [note] if note else []
    if unmeasured.differ:
        verdicts.add("unclear")
        reasons.append(
            f"Unmeasured runs may hide a loss: {unmeasured.counted} (p = {unmeasured.p_value:.2g}). hud jobs shows why; play "
            "the tasks again when both are graded alike."
        )
    else:
        notes += _unmeasured_notes(unmeasured)
    parts = {part.name: part for part in pairing.subsets}
    for name in gate.critical:
        verdict, reason = _critical(name, parts.get(name), gate)
        verdicts.add(verdict)
        (notes if verdict == "better" else reasons).append(reason)
    notes += [
        f"{part.name} got {part.verdict}: {measured(part)}."
        for part in pairing.subsets
        if part.name not in gate.critical and part.verdict != "noise"
    ]
    worst = next(verdict for verdict in ("worse", "unclear", "better") if verdict in verdicts)
    return Decision(worst, tuple(reasons), tuple(notes), pairing, unmeasured)


def subsets_of(columns: Mapping[str, Mapping[str, Any] | None]) -> dict[str, list[str]]:
    """Return the subsets by the tasks' columns, by name; `columns` are by slug.

    A column with at most `MOST_VALUES` distinct values (members, for lists of texts) defines a subset for each.
    """
    slugs: dict[str, dict[str, list[str]]] = {}
    for slug, row in columns.items():
        for column, value in (row or {}).items():
            for label in value if isinstance(value, list | tuple) else [value]:
                if isinstance(label, str | int | bool):
                    slugs.setdefault(column, {}).setdefault(str(label), []).append(slug)
    return {
        f"{column}={value}": slugs
        for column, values in slugs.items()
        if len(values) <= MOST_VALUES
        for value, slugs in values.items()
    }


def measured(difference: Difference) -> str:
    """Format a difference with its interval and its number of tasks."""
    shown = with_interval(difference.mean, difference.low, difference.high, signed=True)
    share = f", at {1 - SIGNIFICANCE / difference.looks:.2%}" if difference.looks > 1 else ""
    return f"{shown} on {_tasks(difference)}{share}"


def evidence(difference: Difference, threshold: float = 0.0) -> str:
    """Return the number of tasks or runs needed to distinguish the measured difference from `threshold`, as text."""
    if difference.identical:
        return f"The two sides are identical: equal rewards, run by run, on {_tasks(difference)}."
    if difference.low is None:
        fewest = fewest_units(difference.looks)
        return f"{fewest} tasks are the least, or as many pairs of runs on the same seeds."
    needed = difference.needed(threshold)
    if needed is None:
        shown = difference.detectable
        return f"These tasks would show a difference of {shown:.3f} in four of five comparisons."
    return f"To tell it from {threshold:g}: {_amount(needed, difference)}."


def difference_shown(difference: Difference) -> dict[str, Any]:
    """Return a difference as plain data, with its verdict and the sample size that would decide it."""
    needed = difference.needed()
    return {
        **asdict(difference),
        "verdict": difference.verdict,
        "detectable": difference.detectable,
        "needed": None if needed is None else asdict(needed),
    }


def _unmeasured_notes(unmeasured: UnmeasuredRuns) -> tuple[str, ...]:
    missing = unmeasured.head + unmeasured.candidate
    return (f"{unmeasured.counted}, which enter no mean.",) if missing else ()


def _gain(overall: Difference, gate: Gate) -> tuple[Literal["better", "worse", "unclear"], str]:
    shown, least = measured(overall), gate.min_gain
    more = f" by more than {least:g}" if least else ""
    if overall.identical:
        return "unclear", f"Not shown to be better{more}: {shown}. {evidence(overall)}"
    if overall.low is None or overall.high is None:
        return "unclear", f"{shown}: too few tasks to tell. {evidence(overall)}"
    if overall.low > least:
        return "better", f"Better than the head{more}: {shown}."
    if overall.high < 0:
        return "worse", f"Worse than the head: {shown}."
    if overall.mean > least:
        return "unclear", f"Not shown to be better{more}: {shown}. {evidence(overall, least)}"
    return "unclear", (
        f"Not shown to be better{more}: {shown}. These tasks would show a gain of {least + overall.detectable:.3f} in "
        "four of five comparisons."
    )


def _critical(
    name: str, part: Difference | None, gate: Gate
) -> tuple[Literal["better", "worse", "unclear"], str]:
    """Return `better` if the subset's loss is significantly below the tolerance."""
    if part is None:
        return "unclear", f"Critical {name}: no task of it was measured on both sides."
    shown, bound = measured(part), -gate.max_regression
    if part.low is not None and part.low >= bound:
        return "better", f"Critical {name} holds: {shown}."
    if part.verdict == "worse" and part.mean < bound:
        return "worse", f"Critical {name} broke: {shown}, where {bound:+g} is allowed."
    doubt = f"Critical {name} may have lost more than {gate.max_regression:g}: {shown}."
    if part.mean < bound:
        return "unclear", f"{doubt} {evidence(part, 0.0)}"
    return "unclear", f"{doubt} {evidence(part, bound)}"


def _tasks(difference: Difference) -> str:
    return f"{difference.tasks} {'task' if difference.tasks == 1 else 'tasks'}"


def _amount(needed: Needed, difference: Difference) -> str:
    if needed.tasks > _MOST_NEEDED:
        return f"more than {_MOST_NEEDED:,} tasks"
    runs = f"{difference.runs:.3g} {'run' if difference.runs == 1 else 'runs'}"
    tasks = f"about {needed.tasks:,} tasks of {runs} each"
    if needed.runs is None or needed.runs > _MOST_NEEDED:
        return f"{tasks} (more runs of these {difference.tasks} would not do)"
    return f"{tasks}, or these {difference.tasks} with {needed.runs:,} each"
