"""How OpenAI is told of tools, and which of ours a name in its answers is.

A computer is declared as the provider's own tool where the model knows one; all others are functions with their
schema. Names that the API does not take are changed on the way, and back again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hud.inference.dialects.responses.computer import ComputerTool, declaration, go_function
from hud.inference.tool_names import wire_names
from hud.trace import ToolSpec

LONGEST_NAME = 64


@dataclass
class Declared:
    """The tools of one request, and what the names on the wire stand for."""

    tools: list[dict[str, Any]] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    """Our tool's name, by the name that the model calls it."""
    wire: dict[str, str] = field(default_factory=dict)
    """That name, by our tool's."""
    computer: str = "computer"
    """Our tool that the provider's own computer stands for."""


def declare(
    specs: Sequence[ToolSpec],
    computer: ComputerTool | None = None,
    hosted_tools: Sequence[dict[str, Any]] = (),
) -> Declared:
    """Return how `specs` are declared; with `computer`, a computer is the provider's own tool."""
    declared = Declared()
    own = next((spec for spec in specs if computer and spec.native == "computer"), None)
    functions = [spec for spec in specs if spec is not own]
    names = wire_names([spec.name for spec in functions], LONGEST_NAME)
    if own is not None and computer is not None:
        declared.computer = own.name
        declared.tools.append(declaration(own, computer))
        go = go_function(own, names.values())
        if go is not None:
            declared.tools.append(go)
            declared.named[go["name"]] = own.name
    for spec in functions:
        name = names[spec.name]
        declared.wire[spec.name] = name
        declared.named[name] = spec.name
        # Schemas of environments have optional arguments, which the strict mode refuses.
        function = {**spec.function(), "name": name}
        declared.tools.append({"type": "function", **function, "strict": False})
    declared.tools.extend(hosted_tools)
    return declared
