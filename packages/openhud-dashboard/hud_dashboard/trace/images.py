"""Images of a step: their places in the payload, names and bytes.
An image's name is the SHA-256 of its base64, which is also the name of a large image's blob. An address with this name
is immutable, so browsers may cache it forever.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from typing import Any

from hud.errors import NotFoundError
from hud_dashboard.trace.image_headers import ImageRefusedError
from hud_platform.store.store import Store

_BLOB = "hud.blob"
_KINDS = ("image", "image_url")
_NESTED = "subagent"
_NAME = re.compile("[0-9a-f]{64}")


def image_name(block: Any) -> str | None:
    """Return the name of the image in a block of content; None for any other block."""
    content = _image(block)
    if content is None:
        return None
    data, blob = content
    if not blob:
        return hashlib.sha256(data.encode("utf-8", "replace")).hexdigest()
    name = blob.rpartition("/")[2]
    return name if _NAME.fullmatch(name) else None


def images(payload: Any, *, nested: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the block of every distinct image of a step, in order; `nested`: also those of nested runs."""
    seen: set[str] = set()
    # No recursion: payloads may be nested deeper than Python's recursion limit.
    left: list[Any] = [payload]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left.extend(part for part in reversed(value) if isinstance(part, dict | list))
        elif isinstance(value, dict):
            name = image_name(value) if value.get("type") in _KINDS else None
            if name is None:
                # Most values have no children; skipping them is fast for timelines of thousands of steps.
                left.extend(
                    part
                    for key, part in reversed(value.items())
                    if isinstance(part, dict | list) and (nested or key != _NESTED)
                )
            elif name not in seen:
                seen.add(name)
                yield name, value


def image_bytes(store: Store, team: str, payload: Any, name: str) -> bytes:
    """Return the bytes of a step's image. Raises `NotFoundError`, and `ImageRefusedError` for invalid base64."""
    block = next(
        (image for hash_name, image in images(payload, nested=True) if hash_name == name), None
    )
    content = _image(block)
    if content is None:
        raise NotFoundError("This step has no such image.")
    data, blob = content
    # A client may have written such a name itself: names resolve only within its team.
    if blob:
        if not blob.startswith(f"{team}/attachments/"):
            raise NotFoundError("This step has no such image.")
        data = store.blobs.get(blob).decode("ascii", "replace")
    try:
        return base64.b64decode(_bare(data), validate=True)
    except (binascii.Error, ValueError):
        raise ImageRefusedError("This image is not base64, so it cannot be shown.") from None


def _image(block: Any) -> tuple[str, str] | None:
    """Return an image's base64 and the name of its blob; one of them is empty."""
    if not isinstance(block, dict):
        return None
    if block.get("type") == "image_url":
        place = block.get("image_url")
        url = place.get("url") if isinstance(place, dict) else place
        return (url, "") if isinstance(url, str) and url.startswith("data:") else None
    if block.get("type") != "image":
        return None
    inner = block.get("source") if isinstance(block.get("source"), dict) else block
    assert isinstance(inner, dict)
    data, blob = inner.get("data"), inner.get(_BLOB)
    if isinstance(blob, str):
        return "", blob
    return (data, "") if isinstance(data, str) else None


def _bare(data: str) -> bytes:
    """Return base64 without the `data:` prefix and white space."""
    if data.startswith("data:"):
        data = data.partition(",")[2]
    return "".join(data.split()).encode("ascii", "replace")
