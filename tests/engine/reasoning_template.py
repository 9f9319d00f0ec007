"""Chat templates that are told how much to reason, after the manner of the families that know it."""

from hud.engine.tiny_model import TEMPLATE

WORDED = "<|system|>Reasoning: {{ reasoning_effort | default('medium') }}<|end|>"
"""Written before the conversation, as gpt-oss has it."""
SWITCHED = (
    "{% if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}"
    "<think>\n\n</think>\n\n{% endif %}"
)
"""Written where the assistant's turn begins, as Qwen3 has it."""


def worded_template() -> str:
    return WORDED + TEMPLATE


def switched_template() -> str:
    return TEMPLATE.rstrip("\n") + SWITCHED


def both_template() -> str:
    return WORDED + switched_template()
