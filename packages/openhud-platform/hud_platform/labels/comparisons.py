"""Comparisons of two runs of one task by people: which one is better, by a criterion.

Append-only. The newest of a rater on two runs counts, whichever of them was on the left.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean
from typing import Any, Literal, get_args

import sqlalchemy as sa

from hud import exact_json
from hud.environment.templates.task_identity import TaskIdentity
from hud.errors import UsageError
from hud.eval.results.intervals import clustered_interval
from hud.review.rater_agreement import MODEL_RATER, alpha, main_raters, pair_agreement
from hud.trace import new_id
from hud.trace.recorded_time import now
from hud_platform.labels.labels import LONGEST_RATER, NAME
from hud_platform.store import Store, records, tables
from hud_platform.store.queries import as_dict, in_parts

Choice = Literal["left", "right", "tie", "skip"]
CHOICES: tuple[Choice, ...] = get_args(Choice)
CRITERION = "better"
MOST_COMPARISONS = 100_000
"""Comparisons of a criterion that are read, the newest ones."""
_VALUES = {"left": 1.0, "tie": 0.0, "right": -1.0}


@dataclass(frozen=True)
class Judgement:
    """The newest comparison of two runs by a rater."""

    runs: tuple[str, str]
    """In the order of their ids."""
    rater: str
    value: float | None
    """1: the first is better, 0: equal, -1: the second is better; None: skipped."""


class Comparisons:
    """The comparisons of one team."""

    def __init__(self, store: Store, team: str) -> None:
        self.store, self.team = store, team

    def add(
        self, left: str, right: str, choice: str, name: str, rater: str, *, shuffled: bool
    ) -> dict[str, Any]:
        """Add a comparison of two runs, each by its id or a unique start of it; return it.

        `shuffled`: the sides were in random order. Raises `UsageError` for a choice or a name that is not allowed, and for runs that are
        not two measured ones of one task.
        """
        if choice not in CHOICES:
            raise UsageError(f"A choice is one of {', '.join(CHOICES)}, not {choice!r}.")
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name of a criterion: use a name as of a label.")
        traces = [
            str(records.find_run(self.store, self.team, side)["trace_id"]) for side in (left, right)
        ]
        tasks = self.tasks_of(traces)
        if len(tasks) < 2 or len(set(tasks.values())) > 1:
            raise UsageError(
                f"{left!r} and {right!r} are not two measured runs of one task, which alone can be compared."
            )
        row: dict[str, Any] = {
            "id": new_id(),
            "team_id": self.team,
            "left_id": traces[0],
            "right_id": traces[1],
            "name": name,
            "choice": choice,
            "shuffled": shuffled,
            "rater": rater[:LONGEST_RATER],
            "created_at": now(),
        }
        with self.store.begin() as connection:
            connection.execute(sa.insert(tables.comparisons).values(row))
        return {**row, "created_at": row["created_at"].isoformat()}

    def page(
        self,
        name: str | None = None,
        rater: str | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> tuple[list[dict[str, Any]], int]:
        """Return a page of comparisons, newest first, and their number. None: any."""
        table = tables.comparisons
        wanted = {"name": name, "rater": rater}
        query = sa.select(table).where(
            table.c.team_id == self.team,
            *(table.c[column] == value for column, value in wanted.items() if value is not None),
        )
        order = query.order_by(table.c.created_at.desc(), table.c.id)
        rows, total = self.store.page(order, limit, offset)
        return [{**as_dict(row), "created_at": row.created_at.isoformat()} for row in rows], total

    def judgements(self, name: str, rater: str | None = None) -> list[Judgement]:
        """Return the newest comparison of each rater on each two runs by a criterion."""
        newest: dict[tuple[tuple[str, str], str], Judgement] = {}
        for row in self.page(name, rater, MOST_COMPARISONS)[0]:
            left, right = row["left_id"], row["right_id"]
            value = _VALUES.get(row["choice"])
            if left > right:
                left, right, value = right, left, None if value is None else -value
            judgement = Judgement((left, right), row["rater"], value)
            newest.setdefault((judgement.runs, judgement.rater), judgement)
        return list(newest.values())

    def tasks_of(self, traces: Sequence[str]) -> dict[str, Hashable]:
        """Return the identity of the task of each of these runs that is measured and has a task on record, in their order."""
        runs, tasks = tables.runs, {}
        for some in in_parts(traces):
            query = sa.select(runs.c.trace_id, runs.c.slug, runs.c.task).where(
                runs.c.team_id == self.team,
                runs.c.trace_id.in_(some),
                runs.c.reward.is_not(None)
                | (runs.c.source.is_not(None) & runs.c.failure_kind.is_(None)),
            )
            for row in self.store.rows(query):
                task = None if row.task is None else exact_json.loads(row.task)
                key = TaskIdentity.recorded(task).key if task else row.slug
                if key is not None:
                    tasks[row.trace_id] = key
        return {trace: tasks[trace] for trace in traces if trace in tasks}


def preferred(comparisons: Comparisons, name: str) -> list[dict[str, Any]]:
    """Return each two runs of which most raters prefer one: `better`, `worse`, and the numbers of raters `for` and `against`.

    Ties, skipped ones, and models (`review:`) have no vote; runs with as many votes for as against are left out.
    """
    votes: defaultdict[tuple[str, str], Counter[float]] = defaultdict(Counter)
    for judgement in comparisons.judgements(name):
        if judgement.value and not judgement.rater.startswith(MODEL_RATER):
            votes[judgement.runs][judgement.value] += 1
    rows = []
    for runs, counts in sorted(votes.items()):
        first, second = counts[1.0], counts[-1.0]
        if first != second:
            better, worse = runs if first > second else runs[::-1]
            most, least = max(first, second), min(first, second)
            rows.append({"better": better, "worse": worse, "for": most, "against": least})
    return rows


def comparison_agreement(comparisons: Comparisons, name: str) -> dict[str, Any]:
    """Return the agreement of raters on the same two runs, and how often the left one is chosen of those in random order.

    `alpha` is Krippendorff's for the values -1, 0 and 1, with each two runs in both orders: it must not depend on which is named
    first. `left` has the share, its 95% interval and the number of choices; a tie is no choice.
    """
    by_rater: defaultdict[str, dict[str, float]] = defaultdict(dict)
    compared = set()
    for judgement in comparisons.judgements(name):
        if judgement.value is not None:
            compared.add(judgement.runs)
            first, second = judgement.runs
            by_rater[judgement.rater][f"{first} {second}"] = judgement.value
            by_rater[judgement.rater][f"{second} {first}"] = -judgement.value
    between = []
    for first, second in combinations(main_raters(by_rater), 2):
        row = pair_agreement(first, second, by_rater)
        if row["runs"]:
            between.append({**row, "runs": row["runs"] // 2, "equal": row["equal"] // 2})
    return {
        "name": name,
        "raters": {rater: len(values) // 2 for rater, values in by_rater.items()},
        "compared": len(compared),
        "alpha": alpha(list(by_rater.values())),
        "pairs": between,
        "left": _share_of_left(comparisons, name),
    }


def _share_of_left(comparisons: Comparisons, name: str) -> dict[str, Any]:
    chosen: defaultdict[frozenset[str], list[float]] = defaultdict(list)
    for row in comparisons.page(name, limit=MOST_COMPARISONS)[0]:
        if row["shuffled"] and row["choice"] in ("left", "right"):
            runs = frozenset((row["left_id"], row["right_id"]))
            chosen[runs].append(float(row["choice"] == "left"))
    choices = [choice for of_runs in chosen.values() for choice in of_runs]
    interval = clustered_interval(chosen.values())
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    share = fmean(choices) if choices else None
    return {"share": share, "low": low, "high": high, "choices": len(choices)}
