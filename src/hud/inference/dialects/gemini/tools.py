"""How Gemini is told of tools, and which of ours a function call calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hud.inference.dialects.gemini.actions import (
    ACTIONS,
    EXCLUDED,
    LEGACY_BROWSER_ONLY,
    LEGACY_EXCLUDED,
    our_actions,
)
from hud.inference.tool_names import wire_names
from hud.trace import ToolCall, ToolSpec

LONGEST_NAME = 64
_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_STREAMLINED = (3, 5)
"""From here on models have the newer actions, and desktops as well as browsers."""


def model_version(model: str) -> tuple[int, int]:
    """Return the version in a model's name; one that has none is taken for a new one."""
    found = _VERSION.search(model)
    return (99, 0) if found is None else (int(found[1]), int(found[2] or 0))


def knows_computers(model: str) -> bool:
    """Say whether a model has a computer tool of its own."""
    version = model_version(model)
    return "computer-use" in model or _STREAMLINED <= version < (99, 0) or "gemini-3-flash" in model


def sees_results(model: str) -> bool:
    """Say whether pictures may be part of a function's response; other models have them beside it."""
    return "computer-use" in model or model_version(model) >= (3, 0)


@dataclass
class Declared:
    """The tools of one request, and what each name in the answer stands for."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    named: dict[str, ToolSpec] = field(default_factory=dict)
    """Our tool, by the name that Gemini calls it."""
    wire: dict[str, str] = field(default_factory=dict)
    """That name, by our tool's."""
    computer: ToolSpec | None = None
    """The tool that is declared as Gemini's own computer."""
    mixed: bool = False
    """True where functions stand beside tools that the provider runs: it must then tell of those, too."""

    def is_action(self, name: str) -> bool:
        """Say whether a function is an action of the computer."""
        return self.computer is not None and name in ACTIONS and name not in self.named

    def calls(self, call_id: str, name: str, given: dict[str, Any]) -> list[ToolCall]:
        """Return the calls of our tools that a function call stands for: typing may be several."""
        if self.computer is None or not self.is_action(name):
            spec = self.named.get(name)
            ours = name if spec is None else spec.name
            return [ToolCall(id=call_id, name=ours, arguments=given)]
        options = self.computer.options
        plain = {
            key: value for key, value in given.items() if key not in ("intent", "safety_decision")
        }
        actions = our_actions(name, plain, (options["width"], options["height"]))
        return [
            ToolCall(
                id=call_id if number == 0 else f"{call_id}.{number + 1}",
                name=self.computer.name,
                arguments=arguments,
            )
            for number, arguments in enumerate(actions)
        ]


def declare(
    specs: Sequence[ToolSpec],
    model: str,
    hosted_tools: Sequence[dict[str, Any]] = (),
    *,
    computer: bool = False,
) -> Declared:
    """Return how `specs` are declared; with `computer`, a computer is Gemini's own."""
    declared = Declared()
    functions = []
    for spec in specs:
        if computer and spec.native == "computer" and declared.computer is None:
            declared.computer = spec
        else:
            functions.append(spec)
    taken = ACTIONS if declared.computer is not None else ()
    names = wire_names([spec.name for spec in functions], LONGEST_NAME, taken)
    if declared.computer is not None:
        declared.tools.append({"computer_use": _computer_use(declared.computer, model)})
    if functions:
        declared.tools.append(
            {"function_declarations": [_function(spec, names[spec.name]) for spec in functions]}
        )
    for spec in functions:
        declared.named[names[spec.name]] = spec
        declared.wire[spec.name] = names[spec.name]
    declared.tools.extend(hosted_tools)
    declared.mixed = bool(specs and hosted_tools) and model_version(model) >= (3, 0)
    return declared


def _function(spec: ToolSpec, name: str) -> dict[str, Any]:
    # The API wants a description; the schema goes as it is, not in the older dialect of OpenAPI.
    return {
        "name": name,
        "description": spec.description or spec.name,
        "parameters_json_schema": spec.parameters,
    }


def _computer_use(spec: ToolSpec, model: str) -> dict[str, Any]:
    browser = spec.options.get("environment") == "browser"
    if model_version(model) >= _STREAMLINED:
        kind = "ENVIRONMENT_BROWSER" if browser else "ENVIRONMENT_DESKTOP"
        return {"environment": kind, "excluded_predefined_functions": list(EXCLUDED)}
    # Older models know browsers alone; on a desktop they do without what is a browser's.
    excluded = [*LEGACY_EXCLUDED, *(() if browser else LEGACY_BROWSER_ONLY)]
    return {"environment": "ENVIRONMENT_BROWSER", "excluded_predefined_functions": excluded}
