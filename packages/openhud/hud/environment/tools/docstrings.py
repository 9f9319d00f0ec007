"""Descriptions of a function and its parameters from its docstring, in Google's or Sphinx's style."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(
    r"^(args|arguments|parameters|returns?|yields?|raises|examples?|notes?):\s*$", re.IGNORECASE
)
_ENTRY = re.compile(r"^(\*{0,2}\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
_SPHINX = re.compile(r"^:param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")


def parse_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """Return the description, without its sections, and the description of each parameter."""
    description: list[str] = []
    parameters: dict[str, str] = {}
    section, indent, name = "", 0, ""
    for line in inspect.cleandoc(doc or "").splitlines():
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        if match := _SECTION.match(text):
            section, indent, name = match[1].lower(), -1, ""
        elif match := _SPHINX.match(text):
            section, name = "sphinx", match[1]
            parameters[name] = match[2]
        elif section in ("args", "arguments", "parameters"):
            indent = depth if indent < 0 and text else indent
            entry = _ENTRY.match(text) if depth == indent else None
            if entry:
                name = entry[1].lstrip("*")
                parameters[name] = entry[2]
            elif text and name:
                parameters[name] = f"{parameters[name]} {text}".strip()
        elif section == "sphinx" and name and text and not text.startswith(":"):
            parameters[name] = f"{parameters[name]} {text}".strip()
        elif not section:
            description.append(line)
    return "\n".join(description).strip(), parameters
