"""Tool declarations, written and read.

A computer is declared as the provider's native tool if the model has one; all others are functions with their schema.
Names that the API rejects are changed in the request, and changed back in the response.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hud.inference.dialects.chat_completions.tools import LONGEST_NAME
from hud.inference.dialects.conversation_parts import tool_spec
from hud.inference.dialects.fields import Fields
from hud.inference.tool_names import DeclaredTools
from hud.trace import ToolSpec
from hud_integrations.openai.computer import ComputerTool, declaration


@dataclass
class Declared(DeclaredTools):
    """The tools of one request."""

    computer: str = "computer"
    """Name of the tool that is declared as the provider's native computer."""


def declare(
    specs: Sequence[ToolSpec],
    computer: ComputerTool | None = None,
    hosted_tools: Sequence[dict[str, Any]] = (),
) -> Declared:
    """Return the declarations of `specs`; with `computer`, a computer is the provider's native tool."""
    declared = Declared()
    own = next((spec for spec in specs if computer and spec.native == "computer"), None)
    functions = [spec for spec in specs if spec is not own]
    declared.name([spec.name for spec in functions], LONGEST_NAME)
    if own is not None and computer is not None:
        declared.computer = own.name
        declared.tools.append(declaration(own, computer))
        if own.options.get("environment") == "browser":
            go = declared.navigator(own.name)
            declared.tools.append({"type": "function", **go.function(), "strict": False})
    for spec in functions:
        # Schemas of environments have optional arguments, which strict mode rejects.
        function = {**spec.function(), "name": declared.wire[spec.name]}
        declared.tools.append({"type": "function", **function, "strict": False})
    declared.tools.extend(hosted_tools)
    return declared


_SEARCHES = ("web_search", "image_generation")
"""Types, without the date after them, of tools that the provider executes and that clients declare by default."""
_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The tool's input."}},
    "required": ["input"],
}
_SHELL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}},
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer"},
    },
    "required": ["command"],
}
_SHELL_ARGUMENTS = tuple(_SHELL["properties"])
SHELL = "local_shell"


@dataclass(frozen=True)
class ClientTool:
    """A tool of a request that is a function for the model, and another kind of call for the client."""

    kind: Literal["function", "custom", "local_shell"]
    name: str
    namespace: str | None = None


def function_name(name: str, namespace: str | None) -> str:
    """Return the model's name of a function, which may be in a namespace."""
    return name if namespace is None else f"{namespace}__{name}"


def shell_arguments(action: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments in the action of a shell call."""
    return {name: value for name, value in (action or {}).items() if name in _SHELL_ARGUMENTS}


def read_tools(body: Fields) -> list[ToolSpec]:
    """Return the functions of a request, without searches by the provider: this server makes none.

    Raises `UsageError` for the provider's native tools.
    """
    return [spec for spec, _ in _declared(body)]


def client_tools(body: Fields) -> dict[str, ClientTool]:
    """Return the tools of a request whose calls are no plain function calls, by the model's names."""
    return {spec.name: tool for spec, tool in _declared(body) if tool is not None}


def _declared(
    body: Fields, namespace: str | None = None
) -> Iterator[tuple[ToolSpec, ClientTool | None]]:
    for tool in body.objects("tools"):
        match tool.needed_text("type"):
            case "function":
                spec = tool_spec(tool, tool.object("parameters"))
                if namespace is None:
                    yield spec, None
                    continue
                named = spec.model_copy(update={"name": function_name(spec.name, namespace)})
                yield named, ClientTool("function", spec.name, namespace)
            case "namespace" if namespace is None:
                yield from _declared(tool, tool.needed_text("name"))
            case "custom":
                spec = tool_spec(tool, _TEXT)
                # The grammar is a part of the description: a bound turn could not be trained on.
                form = (tool.inner("format") or Fields({})).text("definition")
                if form:
                    spec.description += f"\n\nGrammar of the input:\n{form}"
                yield spec, ClientTool("custom", spec.name)
            case "local_shell":
                description = "Run a command, given as its arguments."
                spec = ToolSpec(name=SHELL, description=description, parameters=_SHELL)
                yield spec, ClientTool("local_shell", SHELL)
            case kind if kind.startswith(_SEARCHES):
                continue
            case _:
                raise tool.unsupported("tools", "are not supported for this model, only functions")
