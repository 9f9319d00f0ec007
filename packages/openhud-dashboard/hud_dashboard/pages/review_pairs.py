"""Comparisons of two runs of one task: those of a search, one pair after another."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from itertools import count
from typing import Annotated, Any

from fastapi import Query, Response

from hud.errors import UsageError
from hud.review.shown_run import shown_steps
from hud.trace import parse_trace
from hud_dashboard.page import Data, Pages, Sent, see
from hud_dashboard.pages.labels import EVERY_RUN, back_of
from hud_platform.dependencies import StorePart, Team
from hud_platform.labels.comparisons import CRITERION, comparison_agreement
from hud_platform.labels.labels import NAME
from hud_platform.routes.comparisons import ComparisonsPart
from hud_platform.routes.labels import Rater
from hud_platform.search.run_search import matching_runs
from hud_platform.store import Store, records

router = Pages()
MOST_TEXT = 24_000
"""Characters of the steps of one run."""


@router.page("/review/pairs", "review_pairs.html")
def review_pairs(
    store: StorePart,
    team: Team,
    comparisons: ComparisonsPart,
    rater: Rater,
    text: Annotated[str, Query(max_length=1_000)] = EVERY_RUN,
    name: str = CRITERION,
) -> Data:
    """The next two runs of one task in a search that the caller has not compared by `name`; neither rewards nor models are shown."""
    shown: Data = {"text": text, "name": name, "runs": [], "prompt": [], "problem": None}
    shown |= {"total": 0, "done": 0, "agreement": None}
    try:
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name of a criterion.")
        traces = matching_runs(store, team, text or EVERY_RUN)
    except UsageError as error:
        return {**shown, "problem": str(error)}
    by_task: defaultdict[Hashable, list[str]] = defaultdict(list)
    of_trace = comparisons.tasks_of(traces)
    for trace, task in of_trace.items():
        by_task[task].append(trace)
    done = {
        judgement.runs
        for judgement in comparisons.judgements(name, rater)
        if all(trace in of_trace for trace in judgement.runs)
    }
    shown |= {
        "total": sum(len(runs) * (len(runs) - 1) // 2 for runs in by_task.values()),
        "done": len(done),
        "agreement": comparison_agreement(comparisons, name),
    }
    pair = next((pair for pair in _pairs(list(by_task.values())) if pair not in done), None)
    if pair is None:
        return shown
    # By rater and runs: a page that is loaded again keeps its sides.
    sides = random.Random(" ".join((rater, name, *pair))).sample(pair, 2)
    prompt, steps = _steps(store, team, sides)
    runs = [{"trace_id": side, "steps": steps[side]} for side in sides]
    return {**shown, "runs": runs, "prompt": prompt}


@router.action("/review/pairs", "run")
def compare(comparisons: ComparisonsPart, rater: Rater, form: Sent) -> Response:
    """Add the form's comparison; then show the page `back`."""
    left, right, choice, name = (form.get(key, "") for key in ("left", "right", "choice", "name"))
    comparisons.add(left, right, choice, name, rater, shuffled=True)
    return see(back_of(form))


def _pairs(tasks: Sequence[Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield all pairs of runs of each task, as ids in order: one of each task, then the next ones."""
    ordered = [sorted(runs) for runs in tasks]
    for distance in range(1, max(map(len, ordered), default=0)):
        for place in count():
            left = [runs for runs in ordered if place + distance < len(runs)]
            if not left:
                break
            for runs in left:
                yield runs[place], runs[place + distance]


def _steps(
    store: Store, team: str, traces: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Return the steps with which both runs begin alike, and the rest of each."""
    steps = {
        trace: list(
            parse_trace(records.whole_trace(store, records.find_run(store, team, trace))).steps
        )
        for trace in traces
    }
    shown = {trace: shown_steps(steps[trace], MOST_TEXT).entries for trace in traces}
    first, second = (shown[trace] for trace in traces)
    alike = 0
    for left, right, step in zip(first, second, steps[traces[0]], strict=False):
        if step.source == "agent" or left != right:
            break
        alike += 1
    return first[:alike], {trace: entries[alike:] for trace, entries in shown.items()}
