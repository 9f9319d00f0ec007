"""Forms of several pages: each step is checked before the next is shown, and only the last one changes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from hud_benchmarks.autonomy.web.pages import Visit

Option = str | tuple[Any, str]
"""Value and text of a choice, or one text that is both."""


@dataclass(frozen=True)
class Field:
    """One field of a step."""

    label: str
    name: str
    options: Sequence[Option] | None = None
    """Choices of a list; None: any text."""
    several: bool = False
    """The options are boxes to tick, at least one."""
    optional: bool = False

    def problem(self, visit: Visit) -> str | None:
        """Return a sentence on a value that is not accepted."""
        values = [value for value in visit.several(self.name) if value.strip()]
        if not values:
            return None if self.optional else f"{self.label}: this is needed."
        if self.options is not None:
            values_offered = {
                str(option if isinstance(option, str) else option[0]) for option in self.options
            }
            if not values_offered.issuperset(values):
                return f"{self.label}: there is no such choice."
        return None


@dataclass(frozen=True)
class Step:
    """One page of a flow."""

    heading: str
    fields: Sequence[Field] = ()
    note: str = ""
    facts: Sequence[tuple[str, object]] = ()
    """Rows of a table to be read before the fields."""
    button: str = "Continue"
    check: Callable[[Mapping[str, str]], str | None] = lambda form: None
    """Return a sentence on a form that is not accepted."""

    def problems(self, visit: Visit) -> list[str]:
        """Return sentences on what is wrong with the fields that were sent."""
        problems = [field.problem(visit) for field in self.fields]
        if not any(problems):
            problems = [self.check(visit.form)]
        return [problem for problem in problems if problem]


def follow(
    visit: Visit,
    steps: Sequence[Step],
    *,
    cancel: str,
    values: Mapping[str, Any] | None = None,
) -> Response | None:
    """Show the step that is next; None once all were sent and accepted.

    `values` holds what fields show at first; `cancel` is the path of the page to go back to.
    """
    sent = int(visit.form.get("step", 0))
    for place, step in enumerate(steps[:sent]):
        problems = step.problems(visit)
        if problems:
            return _shown(visit, steps, place, cancel, values or {}, problems)
    if sent < len(steps):
        return _shown(visit, steps, sent, cancel, values or {}, [])
    return None


def typed(label: str, text: str) -> tuple[Field, Callable[[Mapping[str, str]], str | None]]:
    """Return a field in which a text must be repeated, and its check."""
    name = "typed"

    def check(form: Mapping[str, str]) -> str | None:
        return None if form.get(name) == text else f"{label}: this is not {text}."

    return Field(label, name), check


def agreed(label: str) -> Field:
    """Return a box that must be ticked."""
    return Field(label, "agreed", [("yes", label)], several=True)


def _shown(
    visit: Visit,
    steps: Sequence[Step],
    place: int,
    cancel: str,
    values: Mapping[str, Any],
    problems: list[str],
) -> Response:
    step = steps[place]
    earlier_values = [
        (field.name, value)
        for earlier in steps[:place]
        for field in earlier.fields
        for value in visit.several(field.name)
    ]
    again = {field.name: visit.several(field.name) for field in step.fields} if problems else {}
    shown = {}
    for field in step.fields:
        value = again.get(field.name, values.get(field.name, ""))
        shown[field.name] = [
            str(choice) for choice in (value if isinstance(value, list) else [value])
        ]
    return visit.page(
        "step.html",
        errors=problems,
        step=step,
        number=place + 1,
        count=len(steps),
        kept=earlier_values,
        shown=shown,
        cancel=cancel,
    )
