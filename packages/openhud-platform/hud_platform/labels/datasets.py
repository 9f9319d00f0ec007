"""Data sets of runs that people labelled or compared: their tasks, conversations to imitate, and pairs of preferences."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from hud import exact_json
from hud.errors import UsageError
from hud.trace.trajectory_export import trajectory_line
from hud_platform.labels.comparisons import Comparisons, preferred
from hud_platform.labels.labels import Labels
from hud_platform.store import records

Form = Literal["taskset", "sft", "preferences", "comparisons"]
MOST_RUNS = 5_000
"""Labelled runs of one data set, those with the newest labels."""
MOST_LABELS = 100_000
"""Labels that are read for one data set, the newest ones."""
MOST_BYTES = 64 << 20
"""Size of the runs of one data set, as lines of an export: they are in memory together."""


@dataclass(frozen=True)
class _Rated:
    """A labelled run, its conversation in chat messages."""

    value: float
    """Mean over its raters."""
    run: dict[str, Any]
    prompt: list[dict[str, Any]]
    completion: list[dict[str, Any]]


def dataset(
    labels: Labels, name: str, form: Form, least: float | None, most: float | None
) -> list[dict[str, Any]]:
    """Return the rows of a data set of the runs whose mean value of a label is within `least` and `most`.

    - `taskset`: the task of each run, once
    - `sft`: `messages`, and the `value`
    - `preferences`: `prompt`, `chosen` and `rejected` of two runs of one task with one prompt and different values, each run at
      most once; the best is paired with the worst

    Runs that may not be trained on, by the policy of their source, are in tasksets only. Raises `UsageError` where the runs
    have more than `MOST_BYTES` together.
    """
    values: defaultdict[str, list[float]] = defaultdict(list)
    for trace_id, value in labels.values(name, MOST_LABELS):
        values[trace_id].append(value)
    means = {trace: fmean(rated) for trace, rated in values.items()}
    wanted = [
        trace
        for trace, value in means.items()
        if (least is None or value >= least) and (most is None or value <= most)
    ]
    rated = _rated(labels, {trace: means[trace] for trace in wanted[:MOST_RUNS]})
    if form == "taskset":
        return _tasks(rated)
    rated = [row for row in rated if row.run["may_train"] is not False]
    if form == "sft":
        return [
            {"messages": row.prompt + row.completion, "value": row.value}
            for row in rated
            if row.completion
        ]
    return _pairs(rated)


def compared_pairs(comparisons: Comparisons, name: str) -> list[dict[str, Any]]:
    """Return each two runs of which most people prefer one by a criterion: `prompt`, `chosen`, `rejected`, and the `votes` for and
    against.

    Pairs are left out whose runs have different prompts, no answer, or may not be trained on, and those beyond `MOST_RUNS` runs.
    Raises as `dataset`.
    """
    votes = preferred(comparisons, name)
    traces = dict.fromkeys(trace for row in votes for trace in (row["better"], row["worse"]))
    rated = _rated(comparisons, dict.fromkeys(list(traces)[:MOST_RUNS], 0.0))
    by_trace = {
        row.run["trace_id"]: row
        for row in rated
        if row.completion and row.run["may_train"] is not False
    }
    pairs = []
    for row in votes:
        better, worse = by_trace.get(row["better"]), by_trace.get(row["worse"])
        if better is not None and worse is not None and better.prompt == worse.prompt:
            pairs.append({**_pair(better, worse), "votes": [row["for"], row["against"]]})
    return pairs


def _rated(owner: Labels | Comparisons, values: dict[str, float]) -> list[_Rated]:
    """Return runs with their values, by trace id. Raises `UsageError` where they have more than `MOST_BYTES` together."""
    rated, size = [], 0
    for trace_id, value in values.items():
        run = records.find_run(owner.store, owner.team, trace_id)
        trace = records.whole_trace(owner.store, run)
        written = trajectory_line(run, trace, None)
        size += len(written)
        if size > MOST_BYTES:
            raise UsageError(
                f"The runs of this data set have more than {MOST_BYTES >> 20} MiB together. Take fewer: set least or most."
            )
        line = exact_json.loads(written)
        count = len(line["messages"]) - len(line["completion"])
        rated.append(_Rated(value, run, line["messages"][:count], line["completion"]))
    return rated


def _tasks(rated: list[_Rated]) -> list[dict[str, Any]]:
    rows: dict[bytes, dict[str, Any]] = {}
    for row in rated:
        if row.run["task"] is not None:
            task = {**row.run["task"], "slug": row.run["slug"]}
            rows.setdefault(exact_json.dumps(task, option=exact_json.OPT_SORT_KEYS), task)
    return list(rows.values())


def _pairs(rated: list[_Rated]) -> list[dict[str, Any]]:
    by_prompt: defaultdict[tuple[str | None, bytes], list[_Rated]] = defaultdict(list)
    for row in rated:
        if row.completion:
            by_prompt[row.run["slug"], exact_json.dumps(row.prompt)].append(row)
    pairs = []
    for rows in by_prompt.values():
        ordered = sorted(rows, key=lambda row: -row.value)
        for best, worst in zip(ordered[: len(ordered) // 2], reversed(ordered), strict=False):
            if best.value > worst.value:
                pairs.append({**_pair(best, worst), "values": [best.value, worst.value]})
    return pairs


def _pair(better: _Rated, worse: _Rated) -> dict[str, Any]:
    return {"prompt": better.prompt, "chosen": better.completion, "rejected": worse.completion}
