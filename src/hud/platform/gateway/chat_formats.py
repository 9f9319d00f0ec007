"""The chat formats of model folders, read once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from hud.platform.gateway.detokenizing import Vocabulary

if TYPE_CHECKING:
    from hud.engine.chat.chat_format import ChatFormat

_MOST_FORMATS = 64


@dataclass(frozen=True)
class Format:
    """Chat format and tokenizer of one model."""

    chat: ChatFormat
    vocabulary: Vocabulary
    context: int
    """Most tokens of a conversation."""


@lru_cache(maxsize=_MOST_FORMATS)
def format_of(folder: Path, tool_call_parser: str | None = None) -> Format:
    """Return the format of a model folder; reading one takes a moment, so do it off the event loop."""
    # Needs a tokenizer and a template engine, which a server of nothing but providers' models does without.
    from hud.engine.chat.chat_format import ChatFormat
    from hud.engine.config import DecoderConfig

    config = DecoderConfig.from_folder(folder)
    chat = ChatFormat(folder, config, tool_call_parser=tool_call_parser)
    return Format(chat, Vocabulary(chat.tokenizer), config.max_position_embeddings)
