"""Images among the chunks of Tinker's inputs: the tokens and the pixels that a model's own processor makes of them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hud.engine.chat.conversation_pictures import PromptIds, ShownPicture
from hud.errors import UsageError
from hud.learning.datum_calls import DatumColumns, packed
from hud_integrations.tinker.service.wire.chunks import ImageChunk, InputChunk
from hud_platform.gateway.chat_formats import format_of

if TYPE_CHECKING:
    from hud.engine.chat.chat_format import ChatFormat


def expanded(chunks: Iterable[InputChunk], chat: ChatFormat) -> PromptIds:
    """Return the token ids of chunks, with the pictures among them.

    Raises `UsageError` for an image where the model reads text alone, where the processor refuses it, and where it has another
    number of tokens than the client expects.
    """
    ids: list[int] = []
    shown: list[ShownPicture] = []
    for chunk in chunks:
        if not isinstance(chunk, ImageChunk):
            ids.extend(chunk)
            continue
        if chat.pictures is None:
            raise UsageError("This model reads text only; the input holds an image.")
        processed = chat.pictures.processor.processed(chunk.file)
        tokens = chat.encode(processed.text)
        if chunk.expected_tokens not in (None, len(tokens)):
            raise UsageError(
                f"An image of the input is {len(tokens)} tokens of this model; its chunk expects {chunk.expected_tokens}."
            )
        ids.extend(tokens)
        shown.append(ShownPicture(base64.b64encode(chunk.file).decode(), processed))
    if not shown:
        return PromptIds(ids)
    assert chat.pictures is not None
    prompt = chat.pictures.placed(ids, shown)
    if prompt is None:
        raise UsageError(
            "Tokens that stand for pictures are in the text chunks of the input; send images as chunks."
        )
    return prompt


def with_images(
    datums: Sequence[DatumColumns],
    chunks_by_datum: Mapping[int, Sequence[InputChunk]],
    folder: Path,
) -> list[DatumColumns]:
    """Return datums with their inputs, of those with images by number, in the format of a model's folder.

    Raises `UsageError` as `expanded` does. Reads files.
    """
    chat = format_of(folder).chat
    completed = list(datums)
    for number, chunks in chunks_by_datum.items():
        try:
            ids = expanded(chunks, chat)
        except UsageError as error:
            raise UsageError(f"Datum {number} cannot be trained on. {error}") from None
        columns = {"tokens": packed(ids, np.int64), "pictures": ids.pictures}
        completed[number] = datums[number].model_copy(update=columns)
    return completed
