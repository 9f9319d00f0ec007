"""Identity of a task: environment, template and arguments, whatever its slug and the form of its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hud import exact_json
from hud.trace.json_values import plain_value

TaskKeys = frozenset[str]
"""Keys of a task, one for each equal form of its arguments. Two tasks are the same if they share a key."""


def task_keys(
    environment: str, template: str, forms: Iterable[Mapping[str, Any] | None]
) -> TaskKeys:
    """Return the keys of a task, of which `forms` are equal arguments."""
    return frozenset(
        exact_json.dumps(
            plain_value([environment, template, form or {}]), option=exact_json.OPT_SORT_KEYS
        ).decode()
        for form in forms
    )


def recorded_task_keys(task: Mapping[str, Any]) -> TaskKeys:
    """Return the keys of a recorded task."""
    forms = [task.get("args"), *equal_args_of(task)]
    return task_keys(task.get("env") or "", task.get("id") or "", forms)


def equal_args_of(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return other forms of a recorded task's arguments."""
    forms = task.get("equal_args")
    return [form for form in forms if isinstance(form, dict)] if isinstance(forms, list) else []
