"""Tasks in the manifest of a build, and rows of a taskset that do not fit it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable

Manifest = Mapping[str, Any]


def misfits(rows: Sequence[Mapping[str, Any]], manifests: Mapping[str, Manifest]) -> Iterator[str]:
    """Say, a line each, which rows their environment could not start.

    `manifests` holds the newest build's manifest of each environment that is known, by the name that rows give.
    Rows of other environments are taken on trust: theirs may run elsewhere.
    """
    for row in rows:
        manifest = manifests.get(row["env"])
        if manifest is None:
            continue
        known = {task["id"]: task for task in manifest.get("tasks", [])}
        task = known.get(row["scenario"])
        if task is None:
            there = ", ".join(known) or "none"
            yield (
                f"Task {row['name']!r}: environment {row['env']!r} has no task {row['scenario']!r} (there are: {there})."
            )
        elif schema := task.get("args"):
            yield from (f"Task {row['name']!r}: {said}." for said in faults(row["args"], schema))


def faults(args: Any, schema: Any) -> Iterator[str]:
    """Say, a line each, where arguments do not fit their schema; a schema of a kind that is not known fits all."""
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        # An empty registry: nothing is fetched because an environment's schema refers to it.
        validator = jsonschema.Draft202012Validator(schema, registry=Registry())
        errors = list(validator.iter_errors(args))
    except (jsonschema.SchemaError, Unresolvable, RecursionError):
        return  # A schema of another kind: its environment will say what it does not take.
    for error in errors:
        where = ".".join(str(part) for part in error.absolute_path)
        yield f"argument {where!r}: {error.message}" if where else error.message
