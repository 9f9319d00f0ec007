"""Pass-through to a provider's model in its own dialect: request and response are forwarded unchanged.
Exceptions: the model's name, if the provider has another one, and the key. The client's key is not forwarded, and the
server's key is removed from responses, also if a provider repeats it.
"""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import parse_qsl, urlencode

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

from hud import exact_json
from hud.inference.dialects.chat_completions.completions import (
    DEFAULT_TOKENS as COMPLETION_TOKENS,
)
from hud.outbound import AddressRefusedError, read_bounded, read_start
from hud.platform.gateway.connections import Connections
from hud.platform.gateway.exchange import Exchange, Headers
from hud.platform.gateway.ledger import LONGEST_ANSWER, Meter
from hud.platform.gateway.missing_endpoints import COMPACT
from hud.platform.gateway.providers import ProviderModel
from hud.platform.gateway.redaction import Redaction, redacted
from hud.platform.gateway.refusals import UpstreamError
from hud.platform.gateway.usage_reader import UsageReader

_SENT = frozenset(
    (
        b"content-type",
        b"accept",
        b"user-agent",
        b"anthropic-version",
        b"anthropic-beta",
        b"openai-beta",
        b"x-goog-api-client",
    )
)
"""Request headers that are forwarded to a provider."""
_RETURNED = frozenset(
    (
        "content-type",
        "retry-after",
        "retry-after-ms",
        "x-should-retry",
        "request-id",
        "x-request-id",
        "openai-processing-ms",
        "openai-version",
    )
)
_RETURNED_BELOW = ("x-ratelimit-", "anthropic-ratelimit-")
"""Prefixes of response headers that are returned to a client; others describe the server's account."""
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""Fields of a request with the most tokens of an answer, in any dialect but Gemini's."""
_LIMIT_OF = {
    "chat/completions": "max_completion_tokens",
    "completions": "max_tokens",
    "responses": "max_output_tokens",
    "messages": "max_tokens",
}
"""Field that bounds the answer of a request which states no limit, by action."""
_GEMINI_ACTIONS = ("generateContent", "streamGenerateContent")
_GEMINI_CONFIGS = ("generation_config", "generationConfig")
_GEMINI_LIMITS = ("maxOutputTokens", "max_output_tokens")
_KEY_PARAMETERS = ("key", "api_key")
BYTES_OF_A_TOKEN = 4
MOST_ERROR_BYTES = 1 << 20


class PassThrough:
    """Forwards requests to providers, and their responses to clients."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections

    async def send(
        self,
        exchange: Exchange,
        model: ProviderModel,
        action: str,
        raw: bytes,
        values: dict[str, Any],
        meter: Meter,
        bound: int | None = None,
    ) -> None:
        """Serve an exchange; `bound`: tokens of an answer, for a request that states no limit.

        Raises `UpstreamError` if the provider is unreachable or refuses the server's key.
        """
        meter.guess = len(raw) // BYTES_OF_A_TOKEN
        body = _body_for(model, action, raw, values, bound)
        url = URL(_with_query(model.endpoint(action), exchange.scope["query_string"]), encoded=True)
        headers = {
            key.decode(): value.decode("latin-1")
            for key, value in exchange.scope["headers"]
            if key in _SENT
        }
        headers["accept-encoding"] = "identity"
        if (key := exchange.header(b"idempotency-key")) is not None:
            # The server's key at the provider may serve many: none gets the answer to another one's request.
            own = f"{exchange.who.holder}:{key}".encode()
            headers["idempotency-key"] = hashlib.sha256(own).hexdigest()
        headers.update(model.credentials)
        if model.family == "anthropic":
            headers.setdefault("anthropic-version", "2023-06-01")
        session = await self.connections.session(model.reach)
        try:
            async with session.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                if response.status >= 300:
                    await _pass_error(exchange, model, response)
                else:
                    await _pass_answer(exchange, model, response, meter)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(model, error) from error


def reserve(meter: Meter, action: str, raw: bytes, values: dict[str, Any]) -> int | None:
    """Reserve the tokens of a request in any dialect, and return the bound of each answer (see `TokenBudget.reserve`).

    Raises `TooManyRequests`.
    """
    config = _generation_config(values)
    stated = [values.get(name) for name in _LIMITS] + [config.get(name) for name in _GEMINI_LIMITS]
    # The largest: which of several a provider follows is not known here.
    most = max(_counts(stated), default=None)
    if action == COMPACT:
        most = LONGEST_ANSWER  # No field bounds its answer, so that its whole length must be left.
    counts = [values.get("n"), values.get("best_of")]
    counts += [config.get(name) for name in ("candidateCount", "candidate_count")]
    choices = max(_counts(counts), default=1)
    longest = LONGEST_ANSWER
    if action == "completions":
        longest = COMPLETION_TOKENS
        prompts = values.get("prompt")
        if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int):
            choices *= len(prompts)
    return meter.reserve(len(raw) // BYTES_OF_A_TOKEN, most, longest, choices)


def _body_for(
    model: ProviderModel, action: str, raw: bytes, values: dict[str, Any], bound: int | None
) -> bytes:
    """Return a request's body as the provider gets it: with its name of the model, and with a limit if `bound` is one."""
    if model.family == "gemini":
        # `values` holds fields of the path as well, which are none of the body's.
        return raw if bound is None else exact_json.dumps(_bounded(action, _object(raw), bound))
    if values.get("model") == model.upstream and bound is None:
        return raw
    sent = values if bound is None else _bounded(action, values, bound)
    return exact_json.dumps({**sent, "model": model.upstream})


def _bounded(action: str, values: dict[str, Any], bound: int) -> dict[str, Any]:
    """Return a request with a limit in place of those that are none (null, -1)."""
    if action in _LIMIT_OF:
        others = {name: value for name, value in values.items() if name not in _LIMITS}
        return {**others, _LIMIT_OF[action]: bound}
    if action not in _GEMINI_ACTIONS:
        return values
    others = {name: value for name, value in values.items() if name not in _GEMINI_CONFIGS}
    config = _generation_config(values)
    settings = {name: value for name, value in config.items() if name not in _GEMINI_LIMITS}
    return {**others, "generationConfig": {**settings, "maxOutputTokens": bound}}


def _generation_config(values: dict[str, Any]) -> dict[str, Any]:
    """Return Gemini's settings of a request, in either spelling of their name."""
    config: dict[str, Any] = {}
    for name in _GEMINI_CONFIGS:
        if isinstance(values.get(name), dict):
            config.update(values[name])
    return config


def _object(raw: bytes) -> dict[str, Any]:
    values = exact_json.loads(raw)
    assert isinstance(values, dict)  # The gateway has read it as one.
    return values


def _counts(values: list[Any]) -> list[int]:
    return [value for value in values if type(value) is int and value > 0]


def unreachable(model: ProviderModel, error: BaseException) -> UpstreamError:
    """Return the error for a provider that does not respond; it does not reveal the provider's address."""
    if isinstance(getattr(error, "os_error", None), AddressRefusedError):
        return UpstreamError(
            f"The provider of {model.name!r} is at an address that this server may not call for your team. The server's "
            "operator can allow it: HUD_REACH",
            403,
        )
    kind = "did not answer in time" if isinstance(error, TimeoutError) else "cannot be reached"
    status = 504 if isinstance(error, TimeoutError) else 502
    return UpstreamError(f"The provider of {model.name!r} {kind} ({type(error).__name__}).", status)


def check_refusal(model: ProviderModel, status: int) -> None:
    """Raise `UpstreamError` for a status that the client cannot act on: a refused server key, or a redirect."""
    if status in (401, 403) and model.key is not None:
        where = f" in {model.key_env}" if model.key_env else ""
        raise UpstreamError(
            f"The provider of {model.name!r} refused this server's key{where}; contact the server's operator.",
            status,
        )
    if status < 400:
        raise UpstreamError(
            f"The provider of {model.name!r} answered with a redirect, which is not followed.",
            502,
        )


async def _pass_answer(
    exchange: Exchange, model: ProviderModel, response: aiohttp.ClientResponse, meter: Meter
) -> None:
    usage = UsageReader()
    streams = response.content_type == "text/event-stream"
    if not streams and response.content_length is not None:
        data = redacted(await read_bounded(response), model.secrets)
        usage.take(data)
        usage.read(meter)
        length = (b"content-length", str(len(data)).encode())
        await exchange.begin(response.status, [*_returned(response.headers), length])
        await exchange.end(data)
        return
    await exchange.begin(response.status, _returned(response.headers))
    redaction = Redaction(model.secrets)
    try:
        async for data in response.content.iter_any():
            if shown := redaction.take(data):
                usage.take(shown)
                await exchange.write(shown)
    finally:
        usage.read(meter)
    await exchange.end(redaction.end())


async def _pass_error(
    exchange: Exchange, model: ProviderModel, response: aiohttp.ClientResponse
) -> None:
    check_refusal(model, response.status)
    data = redacted(await read_start(response, MOST_ERROR_BYTES), model.secrets)
    length = (b"content-length", str(len(data)).encode())
    await exchange.begin(response.status, [*_returned(response.headers), length])
    await exchange.end(data)


def _returned(headers: CIMultiDictProxy[str]) -> Headers:
    returned: Headers = []
    for name, value in headers.items():
        lowered = name.lower()
        if lowered in _RETURNED or lowered.startswith(_RETURNED_BELOW):
            returned.append((lowered.encode(), value.encode("latin-1")))
    return returned


def _with_query(url: str, query: bytes) -> str:
    """Return a URL with the client's query, except keys."""
    if not query:
        return url
    forwarded = [
        (name, value)
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True)
        if name not in _KEY_PARAMETERS
    ]
    return f"{url}?{urlencode(forwarded)}" if forwarded else url
