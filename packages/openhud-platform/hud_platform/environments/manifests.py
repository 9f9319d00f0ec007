"""Tasks in the manifest of a build, and rows of a taskset that do not fit it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable

Manifest = Mapping[str, Any]


def misfits(rows: Sequence[Mapping[str, Any]], manifests: Mapping[str, Manifest]) -> Iterator[str]:
    """Yield one line for each row that its environment could not start.
    `manifests`: the newest build's manifest of each known environment, by its name in rows.
    Rows of unknown environments are accepted: those may run elsewhere.
    """
    validators: dict[tuple[str, str], Any] = {}
    for row in rows:
        manifest = manifests.get(row["env"])
        if manifest is None:
            continue
        tasks_by_id = {task["id"]: task for task in manifest.get("tasks", [])}
        task = tasks_by_id.get(row["scenario"])
        if task is None:
            there = ", ".join(tasks_by_id) or "none"
            yield (
                f"Task {row['name']!r}: environment {row['env']!r} has no task {row['scenario']!r} (there are: {there})."
            )
        elif schema := task.get("args"):
            place = row["env"], row["scenario"]
            if place not in validators:
                validators[place] = _validator_of(schema)
            yield from (
                f"Task {row['name']!r}: {fault}."
                for fault in _violations(row["args"], validators[place])
            )


def faults(args: Any, schema: Any) -> Iterator[str]:
    """Yield one line for each violation of a schema; one of an unsupported kind, or that takes long, accepts everything.

    The environment itself refuses invalid arguments. Regular expressions are left to it: their author could choose one that
    takes hours.
    """
    yield from _violations(args, _validator_of(schema))


def _validator_of(schema: Any) -> Any:
    """Return the validator of a schema; None for an unsupported kind, or one whose check takes long."""
    steps = _STEPS.set(iter(range(_MOST_REFERENCES)))
    try:
        _Validator.check_schema(schema)
    except (jsonschema.SchemaError, Unresolvable, RecursionError, _TooLongError):
        return None
    finally:
        _STEPS.reset(steps)
    # An empty registry: references in an environment's schema are never fetched.
    return _Validator(schema, registry=Registry())


def _violations(args: Any, validator: Any) -> Iterator[str]:
    if validator is None:
        return
    steps = _STEPS.set(iter(range(_MOST_REFERENCES)))
    try:
        errors = list(validator.iter_errors(args))
    except (jsonschema.SchemaError, Unresolvable, RecursionError, _TooLongError):
        return
    finally:
        _STEPS.reset(steps)
    for error in errors:
        where = ".".join(str(part) for part in error.absolute_path)
        yield f"argument {where!r}: {error.message}" if where else error.message


class _TooLongError(Exception):
    """A check followed more references than `_MOST_REFERENCES`."""


_MOST_REFERENCES = 10_000
_STEPS: ContextVar[Iterator[int]] = ContextVar("steps")
_Check = Callable[[Any, Any, Any, Any], Iterator[jsonschema.ValidationError] | None]


def _counted(check: _Check) -> _Check:
    """Return a check of references that counts: a few hundred bytes of them can stand for 2^40 checks."""

    def counted(
        validator: Any, value: Any, instance: Any, schema: Any
    ) -> Iterator[jsonschema.ValidationError] | None:
        if next(_STEPS.get(), None) is None:
            raise _TooLongError
        return check(validator, value, instance, schema)

    return counted


def _without_patterns(check: _Check) -> _Check:
    """Return a check that is left out where its result depends on `patternProperties`."""

    def checked(
        validator: Any, value: Any, instance: Any, schema: Any
    ) -> Iterator[jsonschema.ValidationError] | None:
        return None if "patternProperties" in schema else check(validator, value, instance, schema)

    return checked


def _left_out(*_: Any) -> None:
    """Check nothing."""


_CHECKS = jsonschema.Draft202012Validator.VALIDATORS
_Validator = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator,
    {
        "pattern": _left_out,
        "patternProperties": _left_out,
        **{name: _counted(_CHECKS[name]) for name in ("$ref", "$dynamicRef")},
        "additionalProperties": _without_patterns(_CHECKS["additionalProperties"]),
        "unevaluatedProperties": _left_out,  # It matches the patterns of all schemas inside.
    },
)
