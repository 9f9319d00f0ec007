"""Comparison of two runs of one task: their first different step, results and costs."""

from __future__ import annotations

import hashlib
from itertools import zip_longest
from typing import Any

from hud import exact_json
from hud_dashboard.queries import trace_windows
from hud_dashboard.trace.grades import grade_of
from hud_dashboard.trace.page import seconds_of, setting_of
from hud_dashboard.trace.steps import shown_steps
from hud_dashboard.trace.values import dict_of
from hud_platform.store.store import Store

ROWS = 50
_SAME = ("source", "messages", "content", "reasoning", "refusal", "error")

Run = dict[str, Any]
View = dict[str, Any]


def common_prefix(store: Store, first: Run, other: Run) -> int:
    """Return the number of equal steps at the start of two runs."""
    steps = (trace_windows.every_step(store, run["trace_id"]) for run in (first, other))
    count = 0
    for (_, left), (_, right) in zip(*steps, strict=False):
        if _substance(left) != _substance(right):
            break
        count += 1
    return count


def comparison_rows(
    store: Store, first: Run, other: Run, same: int, offset: int
) -> tuple[list[View], bool]:
    """Return rows of two steps each from `offset` on, and whether there are more.
    A row is `{same, parting, one, other}`; equal steps are shown once, and missing steps of a shorter run are None.
    """
    columns = [_column(store, run, offset) for run in (first, other)]
    rows = []
    for place, (left, right) in enumerate(zip_longest(*(views for views, _ in columns)), offset):
        is_same = place < same
        rows.append(
            {
                "same": is_same,
                "parting": place == same,
                "one": left,
                "other": None if is_same else right,
            }
        )
    return rows, any(more for _, more in columns)


def measures(first: Run, other: Run) -> list[View]:
    """Return the measures of two runs: `{name, kind, one, other}`; `kind` is the format of the values."""
    rows = [
        ("Reward", "reward", [run["reward"] for run in (first, other)]),
        ("Duration", "duration", [seconds_of(run) for run in (first, other)]),
        ("Steps", "number", [run["step_count"] for run in (first, other)]),
        ("Turns", "number", [run["turns"] for run in (first, other)]),
        ("Tokens in", "number", [run["prompt_tokens"] for run in (first, other)]),
        ("Tokens out", "number", [run["completion_tokens"] for run in (first, other)]),
        ("Cost", "money", [run["cost_usd"] for run in (first, other)]),
    ]
    return [
        {"name": name, "kind": kind, "one": left, "other": right}
        for name, kind, (left, right) in rows
        if left is not None or right is not None
    ]


def subscores(first: Run, other: Run) -> list[View]:
    """Return the parts of two grades by name: `{name, depth, one, other}`."""
    left, right = (
        _flat(dict_of(grade_of(run["grade"])).get("parts") or []) for run in (first, other)
    )
    return [
        {
            "name": path[-1],
            "depth": len(path) - 1,
            "one": left.get(path),
            "other": right.get(path),
        }
        for path in dict.fromkeys([*left, *right])
    ]


def _column(store: Store, run: Run, offset: int) -> tuple[list[View], bool]:
    """Return the views of a run's steps from `offset` on, and whether there are more."""
    steps = trace_windows.steps_from(store, run["trace_id"], offset, ROWS + 1)
    return shown_steps(setting_of(run), steps[:ROWS]), len(steps) > ROWS


def _substance(payload: dict[str, Any]) -> bytes:
    """Return a digest of a step's content, without times, durations and ids."""
    calls = payload.get("tool_calls")
    call = dict_of(payload.get("call"))
    substance = [
        [payload.get(name) for name in _SAME],
        [
            [dict_of(tool_call).get("name"), dict_of(tool_call).get("arguments")]
            for tool_call in (calls if isinstance(calls, list) else [])
        ],
        [call.get("name"), call.get("arguments")],
        payload.get("result"),
        payload.get("task_call"),
    ]
    try:
        encoded = exact_json.dumps(substance, option=exact_json.OPT_SORT_KEYS)
    except exact_json.JSONEncodeError:
        encoded = repr(substance).encode("utf-8", "replace")
    return hashlib.sha256(encoded).digest()


def _flat(parts: list[View], above: tuple[str, ...] = ()) -> dict[tuple[str, ...], float | None]:
    values: dict[tuple[str, ...], float | None] = {}
    for part in parts:
        path = (*above, part["name"])
        values[path] = part["value"]
        values |= _flat(part["parts"], path)
    return values
