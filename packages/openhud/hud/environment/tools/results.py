"""Tool results: any value as content blocks for an agent."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from hud import exact_json
from hud.trace import ContentBlock, ImageContent, TextContent, ToolResult
from hud.trace.json_values import is_writable

_MOST_LEVELS = 200
"""Deepest nesting of a value that is not written as it is; the rest is left out. It may hold itself."""
_OPTIONS = (
    exact_json.OPT_NON_STR_KEYS
    | exact_json.OPT_SERIALIZE_NUMPY
    | exact_json.OPT_PASSTHROUGH_DATACLASS
)
MAX_TEXT_BYTES = 256 * 1024
"""Bytes to which a result's text is cut: a tool that returns 50 MB must not end the run, or fill the store."""
MAX_IMAGE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True)
class Image:
    """An image as a tool's result: the bytes of a file."""

    data: bytes
    mime_type: str = "image/png"


def tool_result(value: Any, *, limit: int = MAX_TEXT_BYTES) -> ToolResult:
    """Return `value` as a tool result: text, images, JSON, or a list of those."""
    value = _without_foreign_blocks(value)
    if _is_content_with_data(value):
        content, structured = value
        value = ToolResult(content=[_block(item) for item in content])
        value.structured_content = as_json(structured)
    if isinstance(value, ToolResult):
        blocks, structured, failed = list(value.content), value.structured_content, value.is_error
    elif isinstance(value, list | tuple) and any(
        isinstance(item, Image | ImageContent | TextContent) for item in value
    ):
        blocks, structured, failed = [_block(item) for item in value], None, False
    else:
        blocks = [] if value is None else _blocks(value)
        structured, failed = _structured(value), False
    cut = _cut(blocks, limit)
    if cut is not blocks:
        structured = None
    return ToolResult(content=cut, is_error=failed, structured_content=structured)


def _without_foreign_blocks(value: Any) -> Any:
    """Return `value` with pictures of Pillow, and content blocks and results of the `mcp` package, as those of `hud.trace`."""
    if isinstance(value, list | tuple):
        if value and all(map(_is_written_block, value)) and any(map(_is_written_image, value)):
            return list(map(_read_block, value))
        blocks = [_without_foreign_blocks(item) for item in value]
        changed = any(new is not old for new, old in zip(blocks, value, strict=True))
        return type(value)(blocks) if changed and type(value) in (list, tuple) else value
    if _is_written_image(value):
        return _read_block(value)
    if callable(getattr(value, "to_image_content", None)):  # The `Image` of MCP's servers.
        value = value.to_image_content()
    package = type(value).__module__.split(".")[0]
    if package == "PIL" and callable(getattr(value, "_repr_png_", None)):
        data = value._repr_png_()
        return value if data is None else Image(data)
    if package not in ("mcp", "mcp_types", "fastmcp"):
        return value
    from hud.capabilities.mcp.results import (  # Imports `mcp`, which is loaded already.
        block_of,
        result_of,
    )

    result = result_of(value)[0] if hasattr(value, "structured_content") else None
    return result or block_of(value) or value


def _is_written_block(value: Any) -> bool:
    """Return True for a text or an image in the JSON form of MCP."""
    if not isinstance(value, dict):
        return False
    return _is_written_image(value) or (
        value.get("type") == "text" and isinstance(value.get("text"), str)
    )


def _is_written_image(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.get("type") == "image"
        and isinstance(value.get("data"), str)
        and isinstance(value.get("mimeType"), str)
    )


def _read_block(value: dict[str, Any]) -> ContentBlock:
    if value["type"] == "text":
        return text_block(value["text"])
    return ImageContent(data=value["data"], mime_type=value["mimeType"])


def _is_content_with_data(value: Any) -> bool:
    """Return True for a pair of content blocks and data, which tools of MCP's servers may return."""
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    content, structured = value
    return (
        isinstance(structured, dict)
        and isinstance(content, list | tuple)
        and any(isinstance(item, Image | ImageContent | TextContent) for item in content)
    )


def _blocks(value: Any) -> list[ContentBlock]:
    """Return a value as a block of text, and the images within it, which the text numbers from 1."""
    if isinstance(value, str | bytes | bytearray | float | Image | TextContent | ImageContent):
        return [_block(value)]
    images: list[ContentBlock] = []

    def plain(part: Any) -> Any:
        block = _without_foreign_blocks(part)
        if not isinstance(block, Image | ImageContent):
            return _plain(block)
        images.append(_block(block))
        return f"[image {len(images)}]"

    return [text_block(to_json(value, plain)), *images]


def _block(value: Any) -> ContentBlock:
    if isinstance(value, TextContent | ImageContent):
        return value
    if isinstance(value, bytes | bytearray):
        return text_block(_decoded(bytes(value)))
    if isinstance(value, float) and not math.isfinite(value):
        return text_block(str(value))
    if isinstance(value, Image):
        return ImageContent(data=base64.b64encode(value.data).decode(), mime_type=value.mime_type)
    return text_block(value if isinstance(value, str) else to_json(value))


def text_block(text: str) -> TextContent:
    """Return a text block; undecodable bytes in it (of a file name, for example) appear as `\\udcXX`."""
    return TextContent(text=text if text.isascii() else _readable(text))


def _readable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _structured(value: Any) -> dict[str, Any] | None:
    if isinstance(value, Image | TextContent | ImageContent):
        return None
    if isinstance(value, BaseModel):
        return _plain_object(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = _fields(value)
    if not isinstance(value, dict):
        return None
    structured: dict[str, Any] = as_json(value)
    return structured


def as_json(value: Any) -> Any:
    """Return `value` as JSON data: `to_json`, parsed."""
    return exact_json.loads(to_json(value))


def to_json(value: Any, plain: Callable[[Any], Any] | None = None) -> str:
    """Return `value` as compact JSON; values without a JSON form become that of `plain`, by default their `str`."""
    try:
        return exact_json.dumps(value, default=plain or _plain, option=_OPTIONS).decode()
    except exact_json.JSONEncodeError:
        # Lone surrogates, integers beyond 64 bits, deep nesting: slower, but without errors.
        return json.dumps(_stringified(value), separators=(",", ":"), default=_plain)


def _stringified(value: Any, level: int = 0) -> Any:
    """Return `value` with text keys, as the standard library requires, valid Unicode, and no more than `_MOST_LEVELS`."""
    if isinstance(value, str):
        return _readable(value)
    if level > _MOST_LEVELS:
        return "(nested too deep)"
    if isinstance(value, dict):
        return {_readable(str(key)): _stringified(part, level + 1) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_stringified(part, level + 1) for part in value]
    if isinstance(value, int) and not is_writable(value):
        return hex(value)
    return (
        value if isinstance(value, int | float | None) else _stringified(_plain(value), level + 1)
    )


def _plain(value: Any) -> Any:
    value = _without_foreign_blocks(value)
    if isinstance(value, TextContent):
        return value.text
    if isinstance(value, Image | ImageContent):
        return f"[{value.mime_type}, {_image_bytes(value):,} bytes]"
    if isinstance(value, BaseModel):
        return _plain_object(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, bytes | bytearray):
        return _decoded(bytes(value))
    if isinstance(value, Set | Sequence | ValuesView):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    tolist = getattr(value, "tolist", None)  # Arrays that `exact_json` does not write.
    return tolist() if callable(tolist) else str(value)


def _image_bytes(image: Image | ImageContent) -> int:
    return len(image.data) if isinstance(image, Image) else len(image.data) * 3 // 4


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass's instance, except those with a leading underscore."""
    names = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names if not name.startswith("_")}


def _plain_object(value: BaseModel) -> dict[str, Any]:
    """Return a model's fields; of those that pydantic cannot convert, the text."""
    return value.model_dump(mode="json", fallback=_plain)


def _decoded(data: bytes) -> str:
    """Return bytes as text; of binary data, its size."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"[{len(data):,} bytes of binary data]"


def _cut(blocks: list[ContentBlock], limit: int) -> list[ContentBlock]:
    """Return the blocks with text beyond `limit` bytes cut, and a note of it; the same list if it fits."""
    if all(
        _size(block) <= (limit if isinstance(block, TextContent) else MAX_IMAGE_BYTES)
        for block in blocks
    ):
        return blocks
    shortened: list[ContentBlock] = []
    for block in blocks:
        size = _size(block)
        if isinstance(block, TextContent) and size > limit:
            head = block.text[:limit].encode()[:limit].decode("utf-8", "ignore")
            shortened.append(
                TextContent(text=f"{head}\n[cut: {size:,} bytes in all, the first {limit:,} shown]")
            )
        elif isinstance(block, ImageContent) and size > MAX_IMAGE_BYTES:
            shortened.append(
                TextContent(text=f"[an image of {size:,} bytes was left out: too large]")
            )
        else:
            shortened.append(block)
    return shortened


def _size(block: ContentBlock) -> int:
    """Size in bytes; for short text an upper bound, its length times four."""
    if isinstance(block, ImageContent):
        return len(block.data)
    return len(block.text) if len(block.text) * 4 <= MAX_TEXT_BYTES else len(block.text.encode())
