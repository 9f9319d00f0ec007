"""Pictures of a conversation: their files, and their place in a rendered prompt and among its tokens."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hud.engine.chat.template_text import Span, TemplateText, joined
from hud.engine.pictures.placement import starts_of
from hud.errors import UsageError
from hud.trace import ChatMessage
from hud.trace.sampled.pictures import Picture

if TYPE_CHECKING:
    from hud.engine.pictures.processor import PictureProcessor, ProcessedPicture

TEXT_PARTS = ("text", "input_text")
_LARGEST = 1 << 26
"""Most characters of a picture's base64."""


class PromptIds(list[int]):
    """Token ids of a prompt, with its pictures."""

    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True)
class ShownPicture:
    """A picture of a message, as the processor reads it."""

    data: str
    """Base64 of the file."""
    processed: ProcessedPicture


class ConversationPictures:
    """Pictures in the prompts of one model."""

    def __init__(self, processor: PictureProcessor) -> None:
        self.processor = processor

    def read(self, messages: Iterable[ChatMessage]) -> list[ShownPicture]:
        """Return the pictures of messages, in order. Raises `UsageError` for one that cannot be read."""
        return [
            ShownPicture(data, self.processor.processed(_decoded(data)))
            for message in messages
            for data in _inline(message)
        ]

    def count(self, text: TemplateText) -> int:
        """Return the number of placeholders in a rendered text."""
        return len(self._places(text))

    def expanded(self, text: TemplateText, pictures: Sequence[ShownPicture]) -> TemplateText:
        """Return a rendered text with the tokens of each picture in place of its placeholder.

        Raises `UsageError` where the template renders another number of them.
        """
        places = self._places(text)
        if len(places) != len(pictures):
            raise UsageError(
                f"The model's chat template shows {len(places)} of the conversation's {len(pictures)} pictures."
            )
        pieces: list[str] = []
        at = 0
        for (start, end), picture in zip(places, pictures, strict=True):
            pieces += (text[at:start], TemplateText.literal(picture.processed.text))
            at = end
        return joined([*pieces, text[at:]])

    def placed(self, ids: Sequence[int], pictures: Sequence[ShownPicture]) -> PromptIds | None:
        """Return a prompt with its pictures; None where the picture tokens of `ids` are not theirs."""
        counts = [picture.processed.tokens for picture in pictures]
        starts = starts_of(ids, counts, self.processor.token)
        if starts is None:
            return None
        prompt = PromptIds(ids)
        prompt.pictures = tuple(
            Picture(
                start=start,
                tokens=picture.processed.tokens,
                sha256=picture.processed.sha256,
                pixels=picture.processed.pixels,
                data=picture.data,
            )
            for start, picture in zip(starts, pictures, strict=True)
        )
        return prompt

    def _places(self, text: TemplateText) -> list[Span]:
        """Return the positions of placeholders that the template wrote."""
        places: list[Span] = []
        plain, token = str.__str__(text), self.processor.placeholder
        for first, last in text.own:
            at = plain.find(token, first, last)
            while at >= 0:
                places.append((at, at + len(token)))
                at = plain.find(token, at + len(token), last)
        return places


def has_pictures(message: ChatMessage) -> bool:
    """Return whether a message has parts that are not text."""
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") not in TEXT_PARTS for part in content)


def template_parts(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of a message as chat templates of models with pictures read them."""
    return [
        {"type": "text", "text": part["text"]}
        if part.get("type") in TEXT_PARTS
        else {"type": "image"}
        for part in content
    ]


def _inline(message: ChatMessage) -> list[str]:
    """Return the base64 of a message's pictures."""
    content = message.get("content")
    if not isinstance(content, list):
        return []
    return [_base64_of(part) for part in content if part.get("type") not in TEXT_PARTS]


def _base64_of(part: dict[str, Any]) -> str:
    image = part.get("image_url") if part.get("type") == "image_url" else None
    url = image.get("url") if isinstance(image, dict) else image
    if not isinstance(url, str):
        raise UsageError(
            f"A part of a message is of type {part.get('type')!r}; this model reads text and images."
        )
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise UsageError(
            "An image is given by its address; this model's pictures are data URLs: data:image/png;base64,…"
        )
    if len(data) > _LARGEST:
        raise UsageError(
            f"A picture's base64 has {len(data):,} characters; {_LARGEST:,} are the most."
        )
    return data


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError("A picture's data URL is not base64.") from None
