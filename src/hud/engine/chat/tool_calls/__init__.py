"""Tool-call formats: what a model wrote, taken apart into reasoning, text and tool calls.

One file for each format, one table (`formats.FORMATS`). A model's chat template chooses its format; a setting of the
model (`tool_call_parser`) overrides the choice. Names are those of vLLM's `--tool-call-parser`; SGLang's are known, too.
"""

from hud.engine.chat.tool_calls.format import (
    Parsed,
    Piece,
    Said,
    ToolFormat,
    TurnParser,
    parse_output,
)
from hud.engine.chat.tool_calls.formats import FORMATS, format_named, format_of_template
from hud.engine.chat.tool_calls.hermes import HERMES

__all__ = [
    "FORMATS",
    "HERMES",
    "Parsed",
    "Piece",
    "Said",
    "ToolFormat",
    "TurnParser",
    "format_named",
    "format_of_template",
    "parse_output",
]
