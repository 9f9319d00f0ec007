"""How Claude is told of tools, and which of ours a `tool_use` block calls.

A tool of one of Claude's own kinds is declared as such, with the version that the model knows; all others are
functions with their schema. Names that the API does not take are changed on the way, and back again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hud.inference.dialects.anthropic.actions import our_actions
from hud.inference.dialects.anthropic.screenshots import Size, on_screen, seen_size
from hud.inference.tool_names import wire_names
from hud.trace import ToolCall, ToolSpec

ComputerVersion = Literal["computer_toolset_20260801", "computer_20251124", "computer_20250124"]

LONGEST_NAME = 128
_OWN_NAMES = {"bash": "bash", "editor": "str_replace_based_edit_tool", "computer": "computer"}
_OWN_TYPES = {"bash": "bash_20250124", "editor": "text_editor_20250728"}
_BETAS = {
    "computer_20251124": "computer-use-2025-11-24",
    "computer_20250124": "computer-use-2025-01-24",
}
_VERSION = re.compile(r"(?:(opus|sonnet|haiku)-)?(\d)(?:[-.](\d{1,2}))?(?!\d)")
_UNKNOWN = (99, 0)
_SHARP = (4, 7)
_NAVIGATE = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": ["navigate", "back", "forward"]},
        "url": {"type": "string", "description": "Where to go; for `navigate` only."},
    },
    "required": ["action"],
}


def model_version(model: str) -> tuple[str | None, tuple[int, int]]:
    """Return the family and version in a model's name; one that has none is taken for a new one."""
    found = _VERSION.search(model.rpartition("/")[2])
    if found is None:
        return None, _UNKNOWN
    return found[1], (int(found[2]), int(found[3] or 0))


def computer_version(model: str) -> ComputerVersion:
    """Return which computer tool a model knows."""
    family, version = model_version(model)
    if version >= (4, 8):
        return "computer_toolset_20260801"
    if version >= (4, 6) or (family, version) == ("opus", (4, 5)):
        return "computer_20251124"
    return "computer_20250124"


def binds_thinking(model: str) -> bool:
    """Say whether the model refuses its thoughts of old where what was before them has changed since."""
    return (5, 1) <= model_version(model)[1] < _UNKNOWN


@dataclass
class Declared:
    """The tools of one request, and what each name in the answer stands for."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    betas: list[str] = field(default_factory=list)
    named: dict[str, ToolSpec] = field(default_factory=dict)
    """Our tool, by the name that Claude calls it."""
    wire: dict[str, str] = field(default_factory=dict)
    """That name, by our tool's."""
    computer: ToolSpec | None = None
    """The tool that is declared as Claude's own computer."""
    seen: Size = (0, 0)
    """How large Claude sees its screen."""
    navigator: str | None = None
    """Name of the function that moves a browser from page to page, which Claude's computer tool cannot."""

    def calls(self, block: dict[str, Any]) -> list[ToolCall]:
        """Return the calls of our tools that a `tool_use` block stands for; it is one but for repeated keys."""
        name, given = block["name"], block.get("input")
        arguments = given if isinstance(given, dict) else {}
        if self.computer is not None and self._is_computer(block):
            action = name if block.get("toolset_name") else str(arguments.get("action", ""))
            plain = {key: value for key, value in arguments.items() if key != "action"}
            plain = on_screen(plain, self.seen, _size(self.computer))
            return _numbered(block["id"], self.computer.name, our_actions(action, plain))
        if self.computer is not None and name == self.navigator:
            return [ToolCall(id=block["id"], name=self.computer.name, arguments=arguments)]
        spec = self.named.get(name)
        ours = name if spec is None else spec.name
        return [ToolCall(id=block["id"], name=ours, arguments=arguments)]

    def _is_computer(self, block: dict[str, Any]) -> bool:
        if block.get("toolset_name"):
            return bool(block["toolset_name"] == "computer")
        return bool(block["name"] == _OWN_NAMES["computer"])


def declare(
    specs: Sequence[ToolSpec], model: str, hosted_tools: Sequence[dict[str, Any]] = ()
) -> Declared:
    """Return how `specs` are declared to `model`, and after them the tools that Anthropic runs itself."""
    declared = Declared()
    own: dict[str, ToolSpec] = {}
    for spec in specs:
        if spec.native is not None:
            own.setdefault(spec.native, spec)
    functions = [spec for spec in specs if own.get(spec.native or "") is not spec]
    taken = {_OWN_NAMES[kind] for kind in own}
    taken |= {str(tool["name"]) for tool in hosted_tools if "name" in tool}
    names = wire_names([spec.name for spec in functions], LONGEST_NAME, taken)
    for kind, spec in own.items():
        _declare_own(declared, kind, spec, model, set(names.values()))
    for spec in functions:
        name = names[spec.name]
        declared.named[name] = spec
        declared.wire[spec.name] = name
        tool = {"name": name, "input_schema": spec.parameters}
        if spec.description:
            tool["description"] = spec.description
        declared.tools.append(tool)
    declared.tools.extend(hosted_tools)
    return declared


def _declare_own(
    declared: Declared, kind: str, spec: ToolSpec, model: str, taken: set[str]
) -> None:
    """Declare a tool as Claude's own of its kind."""
    name = _OWN_NAMES[kind]
    declared.wire[spec.name] = name
    if kind != "computer":
        declared.named[name] = spec
        declared.tools.append({"type": _OWN_TYPES[kind], "name": name})
        return
    declared.computer = spec
    declared.seen = seen_size(_size(spec), sharp=model_version(model)[1] >= _SHARP)
    version = computer_version(model)
    if version == "computer_toolset_20260801":
        declared.tools.append({"type": version})
    else:
        declared.betas.append(_BETAS[version])
        tool: dict[str, Any] = {
            "type": version,
            "name": name,
            "display_width_px": declared.seen[0],
            "display_height_px": declared.seen[1],
        }
        if version == "computer_20251124":
            tool["enable_zoom"] = True
        declared.tools.append(tool)
    if spec.options.get("environment") == "browser":
        _declare_navigator(declared, taken)


def _size(spec: ToolSpec) -> Size:
    return spec.options["width"], spec.options["height"]


def _declare_navigator(declared: Declared, taken: set[str]) -> None:
    name = "navigate_browser"
    while name in taken:
        name += "_"
    declared.navigator = name
    declared.tools.append(
        {
            "name": name,
            "description": "Open an address in the browser on the screen, or go back or forward in it.",
            "input_schema": _NAVIGATE,
        }
    )


def _numbered(identity: str, name: str, actions: list[dict[str, Any]]) -> list[ToolCall]:
    return [
        ToolCall(id=identity if n == 0 else f"{identity}.{n + 1}", name=name, arguments=arguments)
        for n, arguments in enumerate(actions)
    ]
