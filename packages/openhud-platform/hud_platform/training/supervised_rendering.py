"""Supervised training data from recorded conversations: prompt ids and output ids in the model's own chat format.
Used for learning from agents other than the policy. Rendering follows the order of sampling: each turn's prompt
extends the ids of the turn before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hud.errors import UsageError
from hud.trace import ChatMessage, Continuation, ToolSpec

if TYPE_CHECKING:
    from hud.engine.chat.chat_format import ChatFormat


def render_conversation(
    form: ChatFormat, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]
) -> list[dict[str, Any]]:
    """Return one sample for each turn of the assistant, without logprobs. Raises `UsageError` without such turns."""
    samples: list[dict[str, Any]] = []
    continuation: Continuation | None = None
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = messages[:place]
        prompt = form.extend(continuation, before, tools) if continuation is not None else None
        if prompt is None:
            prompt = form.render(before, tools)
        output = _turn(form, messages[: place + 1], tools)
        sample = {"prompt_token_ids": prompt, "output_token_ids": output}
        samples.append({**sample, "pictures": prompt.pictures} if prompt.pictures else sample)
        spoken = sum(message["role"] != "system" for message in messages[: place + 1])
        continuation = Continuation(token_ids=prompt + output, covered=spoken)
    if not samples:
        raise UsageError(
            "A conversation has no turn of an assistant, so there is nothing to learn from it."
        )
    return samples


def _turn(
    form: ChatFormat, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec]
) -> list[int]:
    """Return the ids of the last message as sampled output of the assistant, including the end of turn."""
    prompt = form.render_text(messages[:-1], tools)
    transcript = form.render_text(messages, tools, generation=False)
    end = form.turn_end(transcript)
    if not transcript.startswith(prompt) or end is None or end[0] < len(prompt):
        raise UsageError(
            "The chat template renders an assistant's turn differently from its generation prompt, so recorded turns "
            "cannot be made into training data."
        )
    return form.encode_rendered(transcript[len(prompt) : end[1]])
