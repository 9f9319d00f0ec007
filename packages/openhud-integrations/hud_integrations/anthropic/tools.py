"""Tool declarations and tool choice, written and read, and the calls of a `tool_use` block.

Tools of Claude's native kinds are declared as such, in the model's version; all others are functions with their schema.
Names that the API rejects are changed in the request, and changed back in the response.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hud.inference.dialects.conversation_parts import checked_choice, tool_spec
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest, ToolChoice
from hud.inference.dialects.tool_calls import repeated_calls
from hud.inference.tool_names import DeclaredTools
from hud.trace import ToolCall, ToolSpec, parsed_arguments
from hud_integrations.anthropic.actions import our_actions
from hud_integrations.anthropic.screenshots import Size, on_screen, seen_size

ComputerVersion = Literal["computer_toolset_20260801", "computer_20251124", "computer_20250124"]

LONGEST_NAME = 128
_OWN_NAMES = {"bash": "bash", "editor": "str_replace_based_edit_tool", "computer": "computer"}
_OWN_TYPES = {"bash": "bash_20250124", "editor": "text_editor_20250728"}
_BETAS = {
    "computer_20251124": "computer-use-2025-11-24",
    "computer_20250124": "computer-use-2025-01-24",
}
_SEARCHES = ("web_search_", "web_fetch_")
_VERSION = re.compile(r"(?:(opus|sonnet|haiku)-)?(\d)(?:[-.](\d{1,2}))?(?!\d)")
_UNKNOWN = (99, 0)
_SHARP = (4, 7)


def model_version(model: str) -> tuple[str | None, tuple[int, int]]:
    """Return the family and version in a model's name; without them it counts as new."""
    match = _VERSION.search(model.rpartition("/")[2])
    if match is None:
        return None, _UNKNOWN
    return match[1], (int(match[2]), int(match[3] or 0))


def computer_version(model: str) -> ComputerVersion:
    """Return a model's version of the computer tool."""
    family, version = model_version(model)
    if version >= (4, 8):
        return "computer_toolset_20260801"
    if version >= (4, 6) or (family, version) == ("opus", (4, 5)):
        return "computer_20251124"
    return "computer_20250124"


def binds_thinking(model: str) -> bool:
    """Return True if the model rejects its earlier thoughts after a change of the prompt before them."""
    return (5, 1) <= model_version(model)[1] < _UNKNOWN


@dataclass
class Declared(DeclaredTools):
    """The tools of a request, and the calls of a `tool_use` block in the response."""

    betas: list[str] = field(default_factory=list)
    computer: ToolSpec | None = None
    """The tool that is declared as Claude's native computer."""
    seen: Size = (0, 0)
    """Size of the screen scaled for Claude, in pixels."""

    def calls(self, block: dict[str, Any]) -> list[ToolCall]:
        """Return the tool calls of a `tool_use` block: one, except for repeated keys."""
        name, arguments = block["name"], parsed_arguments(block.get("input"))
        if self.computer is not None and self._is_computer(block):
            if isinstance(arguments, str):
                return [ToolCall(id=block["id"], name=self.computer.name, arguments=arguments)]
            action = name if block.get("toolset_name") else str(arguments.get("action", ""))
            plain = {key: value for key, value in arguments.items() if key != "action"}
            plain = on_screen(plain, self.seen, _size(self.computer))
            return repeated_calls(block["id"], self.computer.name, our_actions(action, plain))
        return [ToolCall(id=block["id"], name=self.named.get(name, name), arguments=arguments)]

    def _is_computer(self, block: dict[str, Any]) -> bool:
        if block.get("toolset_name"):
            return bool(block["toolset_name"] == "computer")
        return bool(block["name"] == _OWN_NAMES["computer"])


def declare(
    specs: Sequence[ToolSpec], model: str, hosted_tools: Sequence[dict[str, Any]] = ()
) -> Declared:
    """Return the declarations of `specs` for `model`, followed by Anthropic's server tools."""
    declared = Declared()
    own: dict[str, ToolSpec] = {}
    for spec in specs:
        if spec.native is not None:
            own.setdefault(spec.native, spec)
    functions = [spec for spec in specs if own.get(spec.native or "") is not spec]
    taken = {_OWN_NAMES[kind] for kind in own}
    taken |= {str(tool["name"]) for tool in hosted_tools if "name" in tool}
    declared.name([spec.name for spec in functions], LONGEST_NAME, taken)
    for kind, spec in own.items():
        _declare_own(declared, kind, spec, model)
    for spec in functions:
        name = declared.wire[spec.name]
        tool = {"name": name, "input_schema": {"type": "object", **spec.parameters}}
        if spec.description:
            tool["description"] = spec.description
        declared.tools.append(tool)
    declared.tools.extend(hosted_tools)
    return declared


def _declare_own(declared: Declared, kind: str, spec: ToolSpec, model: str) -> None:
    """Declare a tool as Claude's native tool of its kind."""
    name = _OWN_NAMES[kind]
    declared.wire[spec.name] = name
    if kind != "computer":
        declared.named[name] = spec.name
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
        go = declared.navigator(spec.name)
        declared.tools.append(
            {"name": go.name, "description": go.description, "input_schema": go.parameters}
        )


def _size(spec: ToolSpec) -> Size:
    return spec.options["width"], spec.options["height"]


def write_choice(request: GenerationRequest, declared: Declared) -> dict[str, Any] | None:
    """Return `tool_choice`, None for the API's default."""
    choice = request.tool_choice
    if choice.mode == "none":
        return {"type": "none"}
    if choice.mode == "auto" and request.parallel_calls:
        return None
    written: dict[str, Any] = {"type": "any" if choice.mode == "required" else "auto"}
    if len(choice.names) == 1:
        written = {"type": "tool", "name": declared.wire.get(choice.names[0], choice.names[0])}
    if not request.parallel_calls:
        written["disable_parallel_tool_use"] = True
    return written


def read_tools(body: Fields) -> list[ToolSpec]:
    """Return the functions of a request, without searches by the provider: this server makes none.

    Raises `UsageError` for the provider's native tools.
    """
    tools = []
    for tool in body.objects("tools"):
        kind = tool.text("type")
        if kind is not None and kind.startswith(_SEARCHES):
            continue
        if kind not in (None, "custom"):
            raise tool.unsupported("tools", "are not supported here, only custom ones")
        tools.append(tool_spec(tool, tool.object("input_schema")))
    return tools


def read_choice(choice: Fields | None, tools: list[ToolSpec]) -> ToolChoice:
    """Return `tool_choice`; without one, the model decides."""
    if choice is None:
        return ToolChoice()
    match choice.needed_text("type"):
        case "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "any":
            return checked_choice(ToolChoice("required"), tools)
        case "tool":
            return checked_choice(ToolChoice("required", (choice.needed_text("name"),)), tools)
    raise choice.wrong("type", "'auto', 'any', 'tool' or 'none'")
