"""The provider dialect of a request: the form of its errors, also where no endpoint answers."""

from __future__ import annotations

from starlette.types import Scope

from hud.inference.dialects.anthropic.codec import AnthropicCodec
from hud.inference.dialects.chat_completions.codec import ChatCodec
from hud.inference.dialects.codec import ServerCodec
from hud.inference.dialects.gemini.codec import GeminiCodec


def dialect_of(scope: Scope) -> ServerCodec:
    """Return the dialect of a request, by its headers or its path. Default: OpenAI's."""
    path: str = scope["path"]
    headers = {name for name, _ in scope["headers"]}
    if b"x-goog-api-key" in headers or path.startswith(("/v1beta/", "/v1alpha/")):
        return GeminiCodec()
    if b"anthropic-version" in headers or "messages" in path.split("/"):
        return AnthropicCodec()
    return ChatCodec()
