"""Tool declarations, tool choice and schemas, written and read, and the tool calls of a function call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hud.errors import UsageError
from hud.inference.dialects.conversation_parts import checked_choice, tool_spec
from hud.inference.dialects.fields import Fields
from hud.inference.dialects.request import GenerationRequest, ToolChoice
from hud.inference.dialects.tool_calls import repeated_calls
from hud.inference.tool_names import DeclaredTools
from hud.trace import ToolCall, ToolSpec
from hud_integrations.gemini.actions import (
    ACTIONS,
    EXCLUDED,
    LEGACY_BROWSER_ONLY,
    LEGACY_EXCLUDED,
    our_actions,
)

LONGEST_NAME = 64
_MODES = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_VERSION = re.compile(r"gemini-(\d+)(?:\.(\d+))?")
_STREAMLINED = (3, 5)
"""First version with the newer actions, and with desktops in addition to browsers."""


def model_version(model: str) -> tuple[int, int]:
    """Return the version in a model's name; without one it counts as new."""
    match = _VERSION.search(model)
    return (99, 0) if match is None else (int(match[1]), int(match[2] or 0))


def knows_computers(model: str) -> bool:
    """Return True if a model has a native computer tool."""
    version = model_version(model)
    return "computer-use" in model or _STREAMLINED <= version < (99, 0) or "gemini-3-flash" in model


def takes_images_inside(model: str) -> bool:
    """Return True if images may be part of a function's response; for other models they follow it."""
    return "computer-use" in model or model_version(model) >= (3, 0)


@dataclass
class Declared(DeclaredTools):
    """The tools of a request, and the tool calls of a function call in the response."""

    computer: ToolSpec | None = None
    """The tool that is declared as Gemini's native computer."""
    mixed: bool = False
    """True if functions are declared together with the provider's server tools, whose calls must then be returned."""

    def is_action(self, name: str) -> bool:
        """Return True if a function is an action of the computer."""
        return self.computer is not None and name in ACTIONS and name not in self.named

    def calls(self, call_id: str, name: str, arguments: dict[str, Any] | str) -> list[ToolCall]:
        """Return the tool calls of a function call: several for typing."""
        if self.computer is None or not self.is_action(name) or isinstance(arguments, str):
            return [ToolCall(id=call_id, name=self.named.get(name, name), arguments=arguments)]
        options = self.computer.options
        plain = {
            key: value
            for key, value in arguments.items()
            if key not in ("intent", "safety_decision")
        }
        actions = our_actions(name, plain, (options["width"], options["height"]))
        return repeated_calls(call_id, self.computer.name, actions)


def declare(
    specs: Sequence[ToolSpec],
    model: str,
    hosted_tools: Sequence[dict[str, Any]] = (),
    *,
    computer: bool = False,
) -> Declared:
    """Return the declarations of `specs`; with `computer`, a computer is Gemini's native tool."""
    declared = Declared()
    functions = []
    for spec in specs:
        if computer and spec.native == "computer" and declared.computer is None:
            declared.computer = spec
        else:
            functions.append(spec)
    taken = ACTIONS if declared.computer is not None else ()
    declared.name([spec.name for spec in functions], LONGEST_NAME, taken)
    if declared.computer is not None:
        declared.tools.append({"computerUse": _computer_use(declared.computer, model)})
    if functions:
        declared.tools.append(
            {
                "functionDeclarations": [
                    _function(spec, declared.wire[spec.name]) for spec in functions
                ]
            }
        )
    declared.tools.extend(hosted_tools)
    declared.mixed = bool(specs and hosted_tools) and model_version(model) >= (3, 0)
    return declared


def _function(spec: ToolSpec, name: str) -> dict[str, Any]:
    # The API requires a description; the schema is sent as JSON schema, not in the older OpenAPI form.
    return {
        "name": name,
        "description": spec.description or spec.name,
        "parametersJsonSchema": spec.parameters,
    }


def _computer_use(spec: ToolSpec, model: str) -> dict[str, Any]:
    browser = spec.options.get("environment") == "browser"
    if model_version(model) >= _STREAMLINED:
        kind = "ENVIRONMENT_BROWSER" if browser else "ENVIRONMENT_DESKTOP"
        return {"environment": kind, "excludedPredefinedFunctions": list(EXCLUDED)}
    # Older models support browsers only; on a desktop their browser actions are excluded.
    excluded = [*LEGACY_EXCLUDED, *(() if browser else LEGACY_BROWSER_ONLY)]
    return {"environment": "ENVIRONMENT_BROWSER", "excludedPredefinedFunctions": excluded}


def write_choice(request: GenerationRequest, declared: Declared) -> dict[str, Any]:
    """Return `toolConfig`, empty for the API's defaults."""
    config: dict[str, Any] = {}
    if declared.mixed:
        config["includeServerSideToolInvocations"] = True
    choice = request.tool_choice
    if request.tools and choice.mode != "auto":
        calling: dict[str, Any] = {"mode": _MODES[choice.mode]}
        if choice.names:
            names = [declared.wire.get(name, name) for name in choice.names]
            calling["allowedFunctionNames"] = names
        config["functionCallingConfig"] = calling
    return config


def read_tools(body: Fields) -> list[ToolSpec]:
    """Return the functions that may be called. Raises `UsageError` for tools of another kind."""
    tools: list[ToolSpec] = []
    for tool in body.objects("tools"):
        unknown = tool.values.keys() - {"functionDeclarations", "function_declarations"}
        unsupported = [name for name in unknown if tool.values[name] is not None]
        if unsupported:
            raise UsageError(
                f"{tool.where}: {min(unsupported)} is not supported here, only functionDeclarations."
            )
        functions = tool.objects("functionDeclarations")
        tools.extend(tool_spec(function, _schema_of(function)) for function in functions)
    return tools


def _schema_of(function: Fields) -> dict[str, Any] | None:
    schema: dict[str, Any] | None = function.object("parametersJsonSchema")
    return schema if schema is not None else json_schema(function.object("parameters"))


def json_schema(schema: Any) -> Any:
    """Return a schema of Gemini's (OpenAPI, types in capitals) as a JSON schema."""
    if isinstance(schema, list):
        return [json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    read: dict[str, Any] = {}
    for name, value in schema.items():
        if name == "type" and isinstance(value, str):
            read[name] = value.lower()
        elif name == "properties" and isinstance(value, dict):
            read[name] = {key: json_schema(item) for key, item in value.items()}
        elif name in ("enum", "required", "default", "example"):
            read[name] = value
        else:
            read[name] = json_schema(value)
    return read


def read_choice(body: Fields, tools: list[ToolSpec]) -> ToolChoice:
    """Return the tool choice."""
    config = body.inner("toolConfig")
    calling = None
    if config is not None:
        calling = config.inner("functionCallingConfig")
    if calling is None:
        return ToolChoice()
    mode = (calling.text("mode") or "AUTO").upper()
    names = calling.texts("allowedFunctionNames")
    match mode:
        # Calls of local models are checked against their schemas in every mode.
        case "AUTO" | "MODE_UNSPECIFIED" | "VALIDATED":
            return ToolChoice()
        case "NONE":
            return ToolChoice("none")
        case "ANY":
            return checked_choice(ToolChoice("required", names), tools)
    raise calling.wrong("mode", "'AUTO', 'VALIDATED', 'ANY' or 'NONE'")
