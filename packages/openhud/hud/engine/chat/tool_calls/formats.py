"""The table of tool-call formats, in matching order."""

from __future__ import annotations

from hud.engine.chat.tool_calls.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from hud.engine.chat.tool_calls.format import ToolFormat
from hud.engine.chat.tool_calls.glm45 import GLM45
from hud.engine.chat.tool_calls.harmony import HARMONY
from hud.engine.chat.tool_calls.hermes import HERMES, JSON
from hud.engine.chat.tool_calls.llama3_json import LLAMA3_JSON
from hud.engine.chat.tool_calls.mistral import MISTRAL
from hud.engine.chat.tool_calls.pythonic import LLAMA4_PYTHONIC, PYTHONIC
from hud.engine.chat.tool_calls.qwen3_coder import QWEN3_CODER
from hud.errors import UsageError

FORMATS: tuple[ToolFormat, ...] = (
    HARMONY,
    QWEN3_CODER,
    GLM45,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    MISTRAL,
    HERMES,
    LLAMA4_PYTHONIC,
    PYTHONIC,
    LLAMA3_JSON,
    JSON,
)
"""The first match of a template is used: GLM and Qwen3-Coder also use Hermes' marks."""


def format_named(name: str) -> ToolFormat:
    """Return the format by name, vLLM's or SGLang's; raises `UsageError` for an unknown one."""
    for format in FORMATS:
        if name in format.names:
            return format
    names = ", ".join(format.names[0] for format in FORMATS)
    raise UsageError(f"There is no tool-call parser {name!r}; there are {names}.")


def format_of_template(template: str) -> ToolFormat:
    """Return the format of a chat template; default: Hermes."""
    return next((format for format in FORMATS if format.recognizes(template)), HERMES)
