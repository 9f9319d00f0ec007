"""Tool declarations, written and read.

A computer is declared as the provider's native tool if the model has one; all others are functions with their schema.
Names that the API rejects are changed in the request, and changed back in the response.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


def read_tools(body: Fields) -> list[ToolSpec]:
    """Return the functions of a request. Raises `UsageError` for the provider's native tools."""
    tools = []
    for tool in body.objects("tools"):
        if tool.needed_text("type") != "function":
            raise tool.unsupported("tools", "are not supported for this model, only functions")
        tools.append(tool_spec(tool, tool.object("parameters")))
    return tools
