"""Pass-through to a provider's model in its own dialect: request and response are forwarded unchanged.
Exceptions: the model's name, if the provider has another one, and the key. The client's key is not forwarded, and the
server's key is removed from responses, also if a provider repeats it.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any
from urllib.parse import parse_qsl, urlencode

import aiohttp
from multidict import CIMultiDictProxy
from yarl import URL

from hud import exact_json
from hud.inference.dialects.dialect import Dialect
from hud.outbound import MOST_ANSWER_BYTES, AddressRefusedError, read_bounded, read_start
from hud_platform.gateway.connections import Connections
from hud_platform.gateway.exchange import Exchange, Headers
from hud_platform.gateway.held_answers import HeldAnswer
from hud_platform.gateway.ledger import LONGEST_ANSWER, Meter
from hud_platform.gateway.provider_endpoints import AbsentEndpoints
from hud_platform.gateway.redaction import Redaction, redacted
from hud_platform.gateway.refusals import UpstreamError
from hud_platform.gateway.usage_reader import UsageReader
from hud_platform.models.provider_models import ProviderModel

_SENT = frozenset(
    (
        b"content-type",
        b"accept",
        b"user-agent",
    )
)
"""Request headers that are forwarded to a provider, besides those of its dialect."""
_RETURNED = frozenset(
    (
        "content-type",
        "retry-after",
        "retry-after-ms",
        "x-should-retry",
        "request-id",
        "x-request-id",
    )
)
_RETURNED_BELOW = "x-ratelimit-"
"""Prefix of response headers that are returned to a client, besides those of its dialect; others describe the server's account."""
_KEY_PARAMETERS = ("key", "api_key")
_DECODED = ("", "identity", "gzip", "deflate", "br", "zstd")
"""Content encodings that the HTTP client decodes; it passes others on as they are."""
BYTES_OF_A_TOKEN = 4
PIECE_BYTES = 1 << 15
"""Largest piece of a stream: more are held for a client that reads nothing."""
MOST_ERROR_BYTES = 1 << 20


class PassThrough:
    """Forwards requests to providers, and their responses to clients."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.absent = AbsentEndpoints()

    async def send(
        self,
        exchange: Exchange,
        dialect: Dialect,
        model: ProviderModel,
        action: str,
        raw: bytes,
        values: dict[str, Any],
        meter: Meter,
        held: HeldAnswer,
        bound: int | None = None,
    ) -> bool:
        """Serve an exchange; `bound`: tokens of an answer, for a request that states no limit.

        Return False, with nothing sent to the client, if the provider's server lacks an endpoint of this dialect, which is
        not the one that every server of the family has. Raises `UpstreamError` if the provider is unreachable or refuses the
        server's key.
        """
        endpoint = URL(model.endpoint(action), encoded=True)
        optional = dialect is not model.dialect
        if optional and self.absent.remembers(endpoint):
            return False
        meter.guess = len(raw) // BYTES_OF_A_TOKEN
        body = _body_for(model, dialect, action, raw, values, bound)
        url = URL(_with_query(str(endpoint), exchange.scope["query_string"]), encoded=True)
        headers = {
            key.decode(): value.decode("latin-1")
            for key, value in exchange.scope["headers"]
            if key in _SENT or key in dialect.sent_headers or key in dialect.session_headers
        }
        headers["accept-encoding"] = "identity"
        if (key := exchange.header(b"idempotency-key")) is not None:
            # The server's key at the provider may serve many: none gets the answer to another one's request.
            own = f"{exchange.who.holder}:{key}".encode()
            headers["idempotency-key"] = hashlib.sha256(own).hexdigest()
        headers.update(model.credentials)
        for name, value in model.dialect.headers.items():
            headers.setdefault(name, value)
        session = await self.connections.session(model.reach)
        try:
            async with session.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                if 200 <= response.status < 300:
                    refuse_encoding(model, response)
                    await _pass_answer(exchange, dialect, model, response, meter, held)
                    return True
                status = response.status
                if optional and await self.absent.confirm(session, endpoint, headers, status):
                    return False
                await _pass_error(exchange, dialect, model, response)
                return True
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(model, error) from error


async def reserve(
    meter: Meter, dialect: Dialect, action: str, raw: bytes, values: dict[str, Any]
) -> int | None:
    """Reserve the tokens of a request, and return the bound of each answer (see `TokenBudget.reserve`).

    Raises `TooManyRequests`.
    """
    stated = dialect.stated_bounds(action, values)
    # Where no field bounds an answer, its whole length must be left.
    most = stated.tokens if stated.settable else LONGEST_ANSWER
    longest = LONGEST_ANSWER if stated.default is None else stated.default
    return await meter.reserve(len(raw) // BYTES_OF_A_TOKEN, most, longest, stated.answers)


def _body_for(
    model: ProviderModel,
    dialect: Dialect,
    action: str,
    raw: bytes,
    values: dict[str, Any],
    bound: int | None,
) -> bytes:
    """Return a request's body as the provider gets it: with its name of the model, and with a limit if `bound` is one."""
    if model.dialect.model_in_path:
        # `values` holds fields of the path as well, which are none of the body's.
        return (
            raw if bound is None else exact_json.dumps(dialect.bounded(action, _object(raw), bound))
        )
    if values.get("model") == model.upstream and bound is None:
        return raw
    sent = values if bound is None else dialect.bounded(action, values, bound)
    return exact_json.dumps({**sent, "model": model.upstream})


def _object(raw: bytes) -> dict[str, Any]:
    values = exact_json.loads(raw)
    assert isinstance(values, dict)  # The gateway has read it as one.
    return values


def unreachable(model: ProviderModel, error: BaseException) -> UpstreamError:
    """Return the error for a provider that does not respond; it does not reveal the provider's address."""
    if isinstance(getattr(error, "os_error", None), AddressRefusedError):
        return UpstreamError(
            f"The provider of {model.name!r} is at an address that this server may not call for your team. The server's "
            "operator can allow it: HUD_REACH",
            403,
        )
    kind = "did not answer in time" if isinstance(error, TimeoutError) else "cannot be reached"
    if isinstance(error, aiohttp.ClientPayloadError):
        kind = "sent an answer that broke off or cannot be decoded"
    status = 504 if isinstance(error, TimeoutError) else 502
    return UpstreamError(f"The provider of {model.name!r} {kind} ({type(error).__name__}).", status)


def refuse_encoding(model: ProviderModel, response: aiohttp.ClientResponse) -> None:
    """Raise `UpstreamError` for an answer in an unknown encoding: the provider was asked for a plain one."""
    encoding = response.headers.get("content-encoding", "").lower()
    if encoding not in _DECODED:
        raise UpstreamError(
            f"The provider of {model.name!r} sent an answer in the encoding {encoding[:40]!r}, which is not read.",
            502,
        )


def check_refusal(model: ProviderModel, status: int) -> None:
    """Raise `UpstreamError` for a status that the client cannot act on: a refused server key, a redirect, or no answer."""
    if status in (401, 403) and model.key is not None:
        where = f" in {model.key_env}" if model.key_env else ""
        raise UpstreamError(
            f"The provider of {model.name!r} refused this server's key{where}; contact the server's operator.",
            status,
        )
    if status < 200:
        raise UpstreamError(
            f"The provider of {model.name!r} answered with status {status}, which is no answer.",
            502,
        )
    if status < 400:
        raise UpstreamError(
            f"The provider of {model.name!r} answered with a redirect, which is not followed.",
            502,
        )


async def _pass_answer(
    exchange: Exchange,
    dialect: Dialect,
    model: ProviderModel,
    response: aiohttp.ClientResponse,
    meter: Meter,
    held: HeldAnswer,
) -> None:
    usage = UsageReader(dialect)
    streams = response.content_type == "text/event-stream"
    if not streams and response.content_length is not None:
        held.keep(min(response.content_length, MOST_ANSWER_BYTES))
        data = redacted(await read_bounded(response), model.secrets)
        usage.take(data)
        usage.read(meter)
        length = (b"content-length", str(len(data)).encode())
        await exchange.begin(response.status, [*_returned(dialect, response.headers), length])
        await exchange.end(data)
        return
    await exchange.begin(response.status, _returned(dialect, response.headers))
    redaction = Redaction(model.secrets)
    try:
        async for data in response.content.iter_chunked(PIECE_BYTES):
            if shown := redaction.take(data):
                usage.take(shown)
                await exchange.write(shown)
            # A provider that sends much at once leaves other requests their turn.
            await asyncio.sleep(0)
    finally:
        usage.read(meter)
    await exchange.end(redaction.end())


async def _pass_error(
    exchange: Exchange, dialect: Dialect, model: ProviderModel, response: aiohttp.ClientResponse
) -> None:
    check_refusal(model, response.status)
    data = redacted(await read_start(response, MOST_ERROR_BYTES), model.secrets)
    length = (b"content-length", str(len(data)).encode())
    await exchange.begin(response.status, [*_returned(dialect, response.headers), length])
    await exchange.end(data)


def _returned(dialect: Dialect, headers: CIMultiDictProxy[str]) -> Headers:
    prefixes = (_RETURNED_BELOW, *dialect.returned_headers)
    returned: Headers = []
    for name, value in headers.items():
        lowered = name.lower()
        if lowered in _RETURNED or lowered.startswith(prefixes):
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
