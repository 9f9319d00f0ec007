"""Content of an assistant's message: text, or a list of parts of text, reasoning and refusal."""

from __future__ import annotations

from typing import Any

from hud.inference.retries import BrokenAnswer

_KINDS = {
    "text": "content",
    "output_text": "content",
    "thinking": "reasoning_content",
    "reasoning": "reasoning_content",
    "reasoning_text": "reasoning_content",
    "reasoning_content": "reasoning_content",
    "refusal": "refusal",
    # Mistral's references to documents, and thoughts that their provider encrypts, have no text.
    "reference": None,
    "redacted_thinking": None,
}
"""Field of the message that a part's text belongs to; None: the part has no text."""
_TEXTS = ("text", "content", "thinking", "reasoning", "summary", "refusal")
TEXT_FIELDS = ("content", "reasoning_content", "reasoning", "refusal")


def texts_of(message: dict[str, Any]) -> dict[str, str]:
    """Return the texts of a message or of a streamed piece of one, by the fields in `TEXT_FIELDS`.

    Absent fields are omitted. Raises `BrokenAnswer` for a part of another kind.
    """
    texts: dict[str, str] = {}
    for name in TEXT_FIELDS:
        value = message.get(name)
        if isinstance(value, str):
            texts[name] = texts.get(name, "") + value
        elif name == "content" and value is not None:
            for part in value if isinstance(value, list) else [value]:
                field, text = _part(part)
                if field is not None:
                    texts[field] = texts.get(field, "") + text
    return texts


def reasoning_in(texts: dict[str, str]) -> str | None:
    """Return the reasoning; servers that send both fields repeat it."""
    return texts.get("reasoning_content") or texts.get("reasoning")


def _part(part: Any) -> tuple[str | None, str]:
    if isinstance(part, str):
        return "content", part
    kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
    if kind not in _KINDS:
        raise BrokenAnswer(f"answered with content of type {kind!r}, which cannot be read")
    return _KINDS[kind], _text(part)


def _text(value: Any) -> str:
    """Return the text in a part, which may hold a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text(item) for item in value)
    if isinstance(value, dict):
        return next((_text(value[name]) for name in _TEXTS if value.get(name)), "")
    return ""
