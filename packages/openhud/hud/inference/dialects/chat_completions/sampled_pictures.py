"""Pictures of a sampled prompt: the server names them, the client has their files."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

from hud.errors import InfrastructureFault
from hud.inference.dialects.conversation_parts import images_in, inline_image
from hud.trace import ChatMessage
from hud.trace.sampled.pictures import Picture


def with_files(pictures: Sequence[Picture], messages: Sequence[ChatMessage]) -> list[Picture]:
    """Return pictures with their files, which are in the messages. Raises `InfrastructureFault` for one that is not."""
    files: dict[str, str] = {}
    for message in messages:
        for url in images_in(message.get("content")):
            inline = inline_image(url)
            if inline is not None:
                files.setdefault(_digest(inline[1]), inline[1])
    missing = [picture for picture in pictures if picture.sha256 not in files]
    if missing:
        raise InfrastructureFault(
            f"The server names a picture (SHA-256 {missing[0].sha256[:16]}…) that is not in the conversation."
        )
    return [picture.model_copy(update={"data": files[picture.sha256]}) for picture in pictures]


def _digest(data: str) -> str:
    try:
        return hashlib.sha256(base64.b64decode(data, validate=True)).hexdigest()
    except (binascii.Error, ValueError):
        return ""
