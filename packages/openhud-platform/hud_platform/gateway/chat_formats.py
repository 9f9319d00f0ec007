"""Chat formats of model folders, cached."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from hud.engine.models.file_identity import digests
from hud_platform.gateway.detokenizing import Vocabulary

if TYPE_CHECKING:
    from hud.engine.chat.chat_format import ChatFormat

_MOST_FORMATS = 64


@dataclass(frozen=True)
class Format:
    """Chat format and tokenizer of one model."""

    chat: ChatFormat
    vocabulary: Vocabulary
    context: int
    """Context length: maximum number of tokens of a conversation."""


def format_of(folder: Path, tool_call_parser: str | None = None) -> Format:
    """Return the format of a model folder, as its files are now. Reads files: call off the event loop."""
    # Lazy: needs a tokenizer and a template engine, unused on servers with only providers' models.
    from hud.engine.chat.tokenizer_settings import format_files

    return _format_of(folder, digests(format_files(folder)), tool_call_parser)


@lru_cache(maxsize=_MOST_FORMATS)
def _format_of(
    folder: Path, _contents: tuple[str | None, ...], tool_call_parser: str | None
) -> Format:
    from hud.engine.chat.chat_format import ChatFormat
    from hud.engine.config import DecoderConfig

    config = DecoderConfig.from_folder(folder)
    chat = ChatFormat(folder, config, tool_call_parser=tool_call_parser)
    return Format(chat, Vocabulary(chat.tokenizer), config.max_position_embeddings)


def context_of(folder: Path) -> int:
    """Return the context length of a model folder, in tokens. Reads a file: call off the event loop."""
    from hud.engine.config import DecoderConfig

    return DecoderConfig.from_folder(folder).max_position_embeddings
