"""Conversion of MCP servers' tools and results, with every kind of block, to `hud.trace` types.

Agents receive text and images. A block of another kind (a resource, a link to one, audio) is described in text, and
recorded unchanged in the trace.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from mcp import types

from hud import exact_json
from hud.trace import ContentBlock, ImageContent, TextContent, ToolResult, ToolSpec


def spec_of(tool: types.Tool, name: str | None = None) -> ToolSpec:
    """Return a server's tool as agents receive it, under `name` if given."""
    schema = dict(tool.input_schema or {})
    if schema.get("type") != "object":
        schema = {**schema, "type": "object"}
    schema.setdefault("properties", {})
    return ToolSpec(
        name=name or tool.name, description=tool.description or tool.title or "", parameters=schema
    )


def result_of(call_result: types.CallToolResult) -> tuple[ToolResult, list[dict[str, Any]]]:
    """Return the result as agents receive it, and the unchanged blocks that cannot be shown to them."""
    shown: list[ContentBlock] = []
    unshown: list[dict[str, Any]] = []
    for block in call_result.content:
        shown.append(_shown(block))
        if not isinstance(block, types.TextContent | types.ImageContent):
            unshown.append(block.model_dump(mode="json", by_alias=True, exclude_none=True))
    structured: Any = call_result.structured_content
    if structured is not None and not shown:
        # Structured content without its text form, which servers should add.
        shown.append(TextContent(text=exact_json.dumps(structured, default=str).decode()))
    if structured is not None and not isinstance(structured, dict):
        structured = {"result": structured}
    result = ToolResult(
        content=shown, is_error=bool(call_result.is_error), structured_content=structured
    )
    return result, unshown


def block_of(value: Any) -> ContentBlock | None:
    """Return a content block of the `mcp` package as agents receive it; None for any other value."""
    kinds = (
        types.TextContent
        | types.ImageContent
        | types.AudioContent
        | types.EmbeddedResource
        | types.ResourceLink
    )
    return _shown(value) if isinstance(value, kinds) else None


def _shown(block: types.ContentBlock) -> ContentBlock:
    match block:
        case types.TextContent():
            return TextContent(text=block.text)
        case types.ImageContent():
            return ImageContent(data=block.data, mime_type=block.mime_type)
        case types.EmbeddedResource():
            return resource_block(block.resource)
        case types.ResourceLink():
            suffix = f": {block.description}" if block.description else ""
            return TextContent(text=f"[resource {block.name} at {block.uri}{suffix}]")
        case types.AudioContent():
            size = _bytes(block.data)
            return TextContent(text=f"[audio, {block.mime_type}, {size:,} bytes]")


def resource_block(
    resource: types.TextResourceContents | types.BlobResourceContents,
) -> ContentBlock:
    """Return the contents of a resource as agents receive them."""
    kind = resource.mime_type or "unknown type"
    if isinstance(resource, types.TextResourceContents):
        return TextContent(text=f"[resource {resource.uri}]\n{resource.text}")
    if kind.startswith("image/"):
        return ImageContent(data=resource.blob, mime_type=kind)
    return TextContent(text=f"[resource {resource.uri}, {kind}, {_bytes(resource.blob):,} bytes]")


def _bytes(encoded: str) -> int:
    try:
        return len(base64.b64decode(encoded))
    except (ValueError, binascii.Error):
        return len(encoded)
