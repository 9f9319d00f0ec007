"""Tasks in the manifest of a build, and rows of a taskset that do not fit it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    """Yield one line for each violation of a schema; a schema of an unsupported kind accepts all arguments."""
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        # An empty registry: references in an environment's schema are never fetched.
        validator = jsonschema.Draft202012Validator(schema, registry=Registry())
        errors = list(validator.iter_errors(args))
    except (jsonschema.SchemaError, Unresolvable, RecursionError):
        return  # Unsupported schema: the environment itself will refuse invalid arguments.
    for error in errors:
        where = ".".join(str(part) for part in error.absolute_path)
        yield f"argument {where!r}: {error.message}" if where else error.message
