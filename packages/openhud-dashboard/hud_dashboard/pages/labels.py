"""Labels of runs, jobs and checkpoints, and the review queue: runs of a search, one after another."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import Query, Response

from hud.errors import UsageError
from hud.review.shown_run import step_texts
from hud.trace import parse_trace
from hud_dashboard.page import Data, Pages, Sent, see
from hud_platform.dependencies import StorePart, Team
from hud_platform.labels.agreement import agreement
from hud_platform.labels.labels import KINDS, NAME
from hud_platform.routes.labels import LabelsPart, Rater
from hud_platform.search.run_search import matching_runs
from hud_platform.store import records
from hud_platform.store.task_labels import run_label

router = Pages()
EVERY_RUN = "status:completed"
"""Runs of a review without a search."""
MOST_VALUES = 9
"""Choices of one label: each has a key."""
MOST_LABELS = 100_000


@router.page("/review", "review.html")
def review(
    store: StorePart,
    team: Team,
    labels: LabelsPart,
    rater: Rater,
    text: Annotated[str, Query(max_length=1_000)] = EVERY_RUN,
    name: str = "correct",
    values: Annotated[str, Query(max_length=100)] = "1,0",
    after: str = "",
) -> Data:
    """The next run of a search that the caller has not labelled with `name`. `after`: the run before it, which was skipped."""
    shown: Data = {"text": text, "name": name, "values": values, "run": None, "problem": None}
    shown |= {"choices": [], "total": 0, "done": 0, "agreement": None, "steps": [], "labels": []}
    try:
        choices = _choices(values)
        if not NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name of a label.")
        traces = matching_runs(store, team, text or EVERY_RUN)
    except UsageError as error:
        return {**shown, "problem": str(error)}
    own, _ = labels.page("run", name=name, rater=rater, limit=MOST_LABELS)
    labelled = {label["subject_id"] for label in own}
    start = traces.index(after) + 1 if after in traces else 0
    left = [trace for trace in traces[start:] if trace not in labelled]
    shown |= {
        "choices": choices,
        "total": len(traces),
        "done": sum(trace in labelled for trace in traces),
        "agreement": agreement(labels, name),
    }
    if not left:
        return shown
    run = records.find_run(store, team, left[0])
    trace = parse_trace(records.whole_trace(store, run))
    steps = [
        {"number": step.step_id, "texts": [list(part) for part in step_texts(step)]}
        for step in trace.steps
    ]
    fields = ("trace_id", "model", "status", "reward", "failure_kind")
    items, _ = labels.page("run", left[0], limit=100)
    return {
        **shown,
        "run": {
            **{field: run[field] for field in fields},
            "label": run_label(run),
        },
        "steps": steps,
        "labels": items,
    }


@router.action("/labels", "run")
def put(labels: LabelsPart, rater: Rater, form: Sent) -> Response:
    """Label the form's subject; then show the page `back`."""
    kind, text = form.get("kind"), (form.get("value") or "").strip()
    chosen = next((label_kind for label_kind in KINDS if label_kind == kind), None)
    if chosen is None:
        raise UsageError(f"A label is of a {', a '.join(KINDS)}, not of {kind!r}.")
    value = _number(text) if text else None
    name, note = form.get("name") or "", (form.get("note") or "").strip() or None
    labels.put(chosen, form.get("subject") or "", name, rater, value, note)
    return see(back_of(form))


@router.action("/labels/{label_id}/remove", "run")
def remove(labels: LabelsPart, label_id: str, form: Sent) -> Response:
    """Remove a label; then show the page `back`."""
    labels.remove(label_id)
    return see(back_of(form))


def _choices(values: str) -> list[float]:
    choices = [_number(part.strip()) for part in values.split(",") if part.strip()]
    if not 1 <= len(choices) <= MOST_VALUES:
        raise UsageError(f"A review has 1 to {MOST_VALUES} values, as in 1,0.5,0.")
    return choices


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"The value of a label is a number, not {text!r}.") from None


def back_of(form: dict[str, str]) -> str:
    """Return the path of a form's page, of this server only."""
    back = form.get("back") or ""
    if not back.startswith("/") or back.startswith("//") or "\\" in back:
        return "/jobs"
    return quote(back, safe="/?&=#:;,%+-._~!()*'@")
