"""Spelling of a response's fields: the API writes camel case, some of its clients and proxies snake case."""

from __future__ import annotations

import re
from typing import Any

_UNDERSCORE = re.compile(r"(?<=[a-z0-9])_([a-z])")
_FOREIGN = frozenset({"args", "response"})
"""Fields whose content is a tool's: its names stay as they are."""


def camel_case(value: Any) -> Any:
    """Return a value of the API with its fields in camel case, such as `functionCall` for `function_call`.

    Contents of `args` and `response` stay as they are. Where a field comes in both spellings, camel case counts.
    """
    if isinstance(value, list):
        return [camel_case(element) for element in value]
    if not isinstance(value, dict):
        return value
    fields = {}
    for name, content in value.items():
        camel = _UNDERSCORE.sub(lambda letter: letter[1].upper(), name)
        if camel != name and camel in value:
            continue
        fields[camel] = content if camel in _FOREIGN else camel_case(content)
    return fields
