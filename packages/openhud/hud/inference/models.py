"""Models of the platform by slug: the engine in this process, or a server over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud import settings
from hud.client import connect
from hud.inference.served_model import OpenAIChatModel

if TYPE_CHECKING:
    from hud.client import Client
    from hud.trace import ChatModel


async def chat_model(
    slug: str,
    checkpoint: str | None = None,
    *,
    client: Client | None = None,
    system_prompt: str | None = None,
) -> ChatModel:
    """Return the model of a slug, at its head or at a checkpoint; `system_prompt` takes the place of its own.

    `client` None: the platform in the current settings. Raises `NotFoundError`, with near matches, for an unregistered
    slug.
    """
    client = client or connect()
    if client.embedded is not None:
        policy = await client.embedded.policy(slug, checkpoint, system_prompt)
        if policy is not None:
            return policy
        # A provider's model: the gateway has its address, key and price.
        return OpenAIChatModel(slug, base_url="http://openhud", transport=client.embedded.transport)
    await client.get("/v2/models/resolve", params={"model": slug})
    assert client.api_url is not None
    return OpenAIChatModel(
        slug,
        base_url=settings.load().gateway_url or client.api_url,
        api_key=client.api_key,
        checkpoint=checkpoint,
        extra={
            "return_token_ids": True,
            **({} if system_prompt is None else {"system_prompt": system_prompt}),
        },
    )
