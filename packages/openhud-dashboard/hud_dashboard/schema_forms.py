"""Forms from JSON schemas, for the arguments of a tool.
Strings, numbers, choices and booleans have their own fields; any other value is entered as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hud.errors import UsageError
from hud_platform.environments.manifests import faults

PREFIX = "arg."
"""Prefix of the fields of arguments, which distinguishes them from the form's other fields."""
Kind = Literal["text", "whole", "number", "choice", "json"]
_KINDS: dict[str, Kind] = {"string": "text", "integer": "whole", "number": "number"}


@dataclass(frozen=True)
class Field:
    """Form field for one argument of a tool."""

    name: str
    kind: Kind
    required: bool
    description: str = ""
    default: str = ""
    """Initial value of the field; one of `choices`, if there are any."""
    choices: list[tuple[str, str]] = field(default_factory=list)
    """Choices: each value as JSON, and its label."""

    @property
    def field_name(self) -> str:
        """Label in the form."""
        return PREFIX + self.name


def fields_of(schema: Mapping[str, Any]) -> list[Field]:
    """Return the fields of a tool's form, required ones first."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return []
    required = schema.get("required") or []
    fields = [_field(name, wanted, name in required) for name, wanted in properties.items()]
    return sorted(fields, key=lambda form_field: not form_field.required)


def read_arguments(schema: Mapping[str, Any], form: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in a submitted form. Empty optional fields are omitted.
    Raises `UsageError` for arguments that do not match the schema.
    """
    arguments: dict[str, Any] = {}
    for form_field in fields_of(schema):
        text = form.get(form_field.field_name)
        text = text.replace("\r\n", "\n") if isinstance(text, str) else ""
        if text == "" and (not form_field.required or form_field.kind != "text"):
            if form_field.required:
                raise UsageError(f"{form_field.name!r} must be given.")
            continue
        arguments[form_field.name] = _read(form_field, text)
    wrong = next(faults(arguments, dict(schema)), None)
    if wrong is not None:
        raise UsageError(f"{wrong[:1].upper()}{wrong[1:300]}.")
    return arguments


def _field(name: str, wanted: Any, required: bool) -> Field:
    plain = _without_null(wanted)
    described = plain.get("description") or (
        wanted.get("description") if isinstance(wanted, dict) else ""
    )
    choices = _choices(plain)
    kind: Kind = "choice" if choices else _KINDS.get(str(plain.get("type")), "json")
    default = wanted.get("default") if isinstance(wanted, dict) else None
    if default is None:
        shown = ""
    elif kind == "text" and isinstance(default, str):
        shown = default
    else:
        shown = json.dumps(default, ensure_ascii=False)
    return Field(name, kind, required, str(described or ""), shown, choices)


def _without_null(wanted: Any) -> dict[str, Any]:
    """Return a schema without its null alternative; `{}` if several alternatives remain."""
    if not isinstance(wanted, dict):
        return {}
    several = wanted.get("anyOf")
    if isinstance(several, list):
        some = [
            option
            for option in several
            if isinstance(option, dict) and option.get("type") != "null"
        ]
        return some[0] if len(some) == 1 else {}
    kinds = wanted.get("type")
    if isinstance(kinds, list):
        left = [kind for kind in kinds if kind != "null"]
        return {**wanted, "type": left[0]} if len(left) == 1 else {}
    return wanted


def _choices(wanted: dict[str, Any]) -> list[tuple[str, str]]:
    if wanted.get("type") == "boolean":
        return [("true", "yes"), ("false", "no")]
    values = wanted.get("enum")
    if not isinstance(values, list):
        return []
    return [
        (
            json.dumps(value, ensure_ascii=False),
            value if isinstance(value, str) else json.dumps(value),
        )
        for value in values
    ]


def _read(form_field: Field, text: str) -> Any:
    if form_field.kind == "text":
        return text
    if form_field.kind == "choice":
        values = {shown: json.loads(shown) for shown, _ in form_field.choices}
        if text not in values:
            raise UsageError(f"Choose one of the values of {form_field.name!r}.")
        return values[text]
    what = {"whole": "a whole number", "number": "a number", "json": "JSON"}[form_field.kind]
    try:
        value = json.loads(text.strip(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise UsageError(f"{form_field.name!r} must be {what}, not {text[:80]!r}.") from None
    plain = isinstance(value, int) and not isinstance(value, bool)
    fits = plain or (form_field.kind == "number" and isinstance(value, float))
    if form_field.kind != "json" and not fits:
        raise UsageError(f"{form_field.name!r} must be {what}, not {text[:80]!r}.")
    return value


def _refuse(constant: str) -> None:
    raise ValueError(constant)
