"""Bodies of requests to a test's own ASGI application."""

from typing import Any


async def body_of(receive: Any) -> bytes:
    """Return the whole body of a request."""
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return body
