"""The HTTP API of a vLLM server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp.http_exceptions import LineTooLong

from hud import exact_json
from hud.errors import InfrastructureFault, UsageError
from hud.outbound import read_bounded, read_start
from hud_integrations.vllm.completion import COMPLETIONS, GENERATE, Endpoint, Piece, read_piece

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
"""Time-out of cheap requests, in seconds."""
LOAD_SECONDS = 600.0
"""Time-out of loading weights, in seconds: a folder of 60 GB from a network disk. Also of the first tokens with them."""
RELEASE_SECONDS = 10.0
"""Time-out of leaving a weight transfer, in seconds: the server may be gone."""
LAST_SECONDS = 1.0
"""Time-out for the end of a stream after its last event, in seconds."""
LONGEST_LINE = 1 << 20
_MISSING = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED)
"""Answers of a server that does not have a route."""


class ServerLost(InfrastructureFault):
    """A server is unreachable, cut a stream, or failed; another may continue."""


class ServerBusy(ServerLost):
    """A server temporarily refuses new requests: shutdown or overload. Running ones continue."""


class ServerRefused(UsageError):
    """Permanent refusal of a request."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
        """Its HTTP status."""


def not_served(url: str, error: ServerRefused) -> UsageError:
    """Return the error for a server that refuses the requests for its version and models."""
    if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return UsageError(
            f"The vLLM server {url} refuses the key, or its lack ({error.code}). Name the environment variable that holds "
            "the server's key: --key-env VARIABLE."
        )
    return UsageError(f"{url} does not answer as a vLLM server does: {error}")


@dataclass(frozen=True)
class Card:
    """A model of a server."""

    name: str
    parent: str | None
    """The base model of an adapter."""
    max_context: int | None


class Server:
    """A server at a URL. Belongs to the event loop of its `session`."""

    def __init__(self, url: str, session: aiohttp.ClientSession, key: str | None) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._openings: set[asyncio.Timeout] = set()
        """Streams whose first answer has not come."""
        self._streams: set[aiohttp.ClientResponse] = set()
        self.heard = 0.0
        """Time of the last token, on the monotonic clock."""
        self.endpoint = COMPLETIONS
        """The endpoint that samples; see `find_endpoint`."""

    async def version(self) -> str:
        """Return vLLM's version."""
        with _readable(self.url):
            return str((await self._get("/version")).get("version", ""))

    async def health(self, seconds: float) -> None:
        """Raise `ServerLost` unless the server answers its health check in time."""
        await self._ask("GET", "/health", seconds=seconds)

    async def models(self) -> list[Card]:
        """Return the server's models and loaded adapters."""
        with _readable(self.url):
            listed = (await self._get("/v1/models")).get("data", [])
            return [
                Card(str(card["id"]), card.get("parent"), _length(card.get("max_model_len")))
                for card in listed
            ]

    async def find_endpoint(self) -> None:
        """Sample by `/inference/v1/generate` if the server offers it, else by `/v1/completions`."""
        # Without its fields the request is refused as wrong where the endpoint is; elsewhere with 403 or 404.
        self.endpoint = COMPLETIONS
        try:
            await self._ask("POST", GENERATE.path, body={})
        except ServerRefused as error:
            if error.code in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
                self.endpoint = GENERATE

    async def complete(self, body: Mapping[str, Any]) -> Piece:
        """Return a completion that is not streamed. Raises `ServerLost` for an answer without a choice.

        Its time-out is that of a load: a fresh server may compile for minutes before its first token.
        """
        endpoint = self.endpoint
        full_body = endpoint.body(body)
        answer = await self._ask("POST", endpoint.path, body=full_body, seconds=LOAD_SECONDS)
        piece = self._piece(endpoint, answer)
        if piece is None:
            raise ServerLost(f"The vLLM server {self.url} answered a completion without a choice.")
        return piece

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[Piece, None]:
        """Yield sampled tokens as they arrive. Closing the iterator cancels the request on the server.

        Raises `ServerLost` if the stream is cut; all tokens yielded before are valid.
        """
        stream_body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        endpoint = self.endpoint
        async with AsyncExitStack() as stack:
            opened = self._opened("POST", endpoint.path, endpoint.body(stream_body))
            response = await self._begun(stack.enter_async_context(opened))
            self._streams.add(response)
            try:
                async with aclosing(self._pieces(endpoint, response)) as pieces:
                    async for piece in pieces:
                        self.heard = time.monotonic()
                        yield piece
            finally:
                self._streams.discard(response)

    async def _begun(self, opening: Awaitable[aiohttp.ClientResponse]) -> aiohttp.ClientResponse:
        """Return the response of a stream that is being opened. Raises `ServerLost` if `break_off` is called first."""
        try:
            async with asyncio.timeout(None) as until:
                self._openings.add(until)
                try:
                    return await opening
                finally:
                    self._openings.discard(until)
        except TimeoutError as error:
            raise ServerLost(
                f"The stream of the vLLM server {self.url} was cut before it began."
            ) from error

    def break_off(self) -> None:
        """Close every stream, those that wait for a first answer included: their readers get `ServerLost`."""
        while self._openings:
            self._openings.pop().reschedule(0)
        for response in list(self._streams):
            response.close()

    # -- weights ------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Pause running requests until `resume`."""
        await self._ask("POST", "/pause", params={"mode": "keep"}, seconds=LOAD_SECONDS)

    async def resume(self) -> None:
        """Continue paused requests."""
        await self._ask("POST", "/resume")

    async def reload(self, folder: str) -> None:
        """Load other weights of the same shape from a folder on the server's file system."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        await self._ask("POST", "/collective_rpc", body=body, seconds=LOAD_SECONDS)

    async def name_weights(self, name: str) -> bool:
        """Name the loaded weights in completions with `return_weight_versions`; False: it is too old for that."""
        try:
            await self._ask("POST", "/update_weight_version", body={"new_version": name})
        except ServerRefused as error:
            if error.code not in _MISSING:
                raise
            return False
        return True

    async def checksums(self) -> dict[str, str] | None:
        """Return the SHA-256 of every tensor of the loaded weights, on each rank; None: it is too old for that.

        It copies the weights to the host and samples nothing meanwhile: some seconds for 10 GB on a rank.
        """
        body = {"action": "checksum"}
        try:
            answer = await self._ask("POST", "/weight_checker", body=body, seconds=LOAD_SECONDS)
        except ServerRefused as error:
            if error.code not in _MISSING:
                raise
            return None
        with _readable(self.url):
            checksums = _json(self.url, answer)["checksums"]
            return {str(name): str(value) for name, value in checksums.items()}

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load an adapter under a name."""
        body = {"lora_name": name, "lora_path": folder}
        await self._ask("POST", "/v1/load_lora_adapter", body=body, seconds=LOAD_SECONDS)

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter."""
        await self._ask("POST", "/v1/unload_lora_adapter", body={"lora_name": name})

    async def world_size(self) -> int:
        """Return the number of GPUs in a weight transfer."""
        with _readable(self.url):
            return int((await self._get("/get_world_size"))["world_size"])

    async def transfer(self, name: str, body: Mapping[str, Any] | None) -> None:
        """Make one of the calls of a weight transfer."""
        await self._ask("POST", f"/{name}", body=body, seconds=LOAD_SECONDS)

    async def leave_transfer(self) -> None:
        """Leave the group of a weight transfer; does nothing if the server is gone, or too old for that."""
        with suppress(ServerLost, ServerRefused):
            await self._ask("POST", "/shutdown_weight_transfer_engine", seconds=RELEASE_SECONDS)

    # -- inside -------------------------------------------------------------------------------------

    async def _get(self, path: str) -> Any:
        return _json(self.url, await self._ask("GET", path))

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: dict[str, str] | None = None,
        seconds: float = ANSWER_SECONDS,
    ) -> bytes:
        async with self._opened(method, path, body, params, seconds) as response:
            return await read_bounded(response)

    @asynccontextmanager
    async def _opened(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        params: dict[str, str] | None = None,
        seconds: float | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield the response to a request, within `seconds` for all of it."""
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method,
                self.url + path,
                params=params,
                data=None if body is None else exact_json.dumps(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS),
                allow_redirects=False,
            ) as response:
                await self._refuse(response)
                yield response
        except (aiohttp.ClientError, LineTooLong, TimeoutError, OSError) as error:
            raise ServerLost(_unreachable(self.url, error)) from error

    async def _refuse(self, response: aiohttp.ClientResponse) -> None:
        """Raise the error of a status that is not a success."""
        code = response.status
        if code < HTTPStatus.MULTIPLE_CHOICES:
            return
        if code < HTTPStatus.BAD_REQUEST:
            raise ServerRefused(
                f"{self.url} answers with a redirection ({code}), which is not followed; name where it leads.",
                code,
            )
        reason = error_message(await read_start(response, LONGEST_LINE))
        where = f"{self.url}{response.url.path}"
        if code in (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS):
            raise ServerBusy(f"The vLLM server takes nothing new now ({where}, {code}): {reason}")
        if code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise ServerLost(f"The vLLM server failed ({where}, {code}): {reason}")
        raise ServerRefused(f"The vLLM server refused ({where}, {code}): {reason}", code)

    async def _pieces(
        self, endpoint: Endpoint, response: aiohttp.ClientResponse
    ) -> AsyncGenerator[Piece, None]:
        """Yield the chunks of a stream of server-sent events, whose last is [DONE]."""
        ended: Piece | None = None
        while line := await response.content.readline():
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                with suppress(TimeoutError):  # Reading to the end allows reuse of the connection.
                    await asyncio.wait_for(read_start(response, LONGEST_LINE), LAST_SECONDS)
                if ended is not None:
                    yield ended
                return
            piece = self._piece(endpoint, data)
            if piece is None:
                continue
            if piece.finish_reason is not None:
                ended = piece
            elif ended is not None:
                # The number of cached tokens is sent after the end.
                ended = replace(ended, cached_tokens=piece.cached_tokens)
            elif piece.token_ids:
                yield piece
        raise ServerLost(f"The vLLM server {self.url} broke off in the middle of a sequence.")

    def _piece(self, endpoint: Endpoint, data: bytes) -> Piece | None:
        with _readable(self.url):
            answer = _json(self.url, data)
            if "error" in answer:
                raise _broken(self.url, answer["error"])
            piece = read_piece(endpoint, answer)
        if piece is not None and len(piece.token_ids) != len(piece.logprobs):
            raise ServerRefused(
                f"The vLLM server {self.url} gave {len(piece.token_ids)} token ids and {len(piece.logprobs)} logprobs; it "
                "is too old to return token ids.",
                HTTPStatus.NOT_IMPLEMENTED,
            )
        return piece


@contextmanager
def _readable(url: str) -> Iterator[None]:
    """Turn the errors of reading fields that are absent or of another type into `ServerLost`."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ServerLost(
            f"{url} answered with other fields than a vLLM server ({type(error).__name__}: {error})."
        ) from error


def _length(value: Any) -> int | None:
    """Return a context's length. Raises `ValueError` for a value that is none."""
    if value is None or (type(value) is int and value > 0):
        return value
    raise ValueError("max_model_len")


def _json(url: str, data: bytes) -> Any:
    try:
        return exact_json.loads(data)
    except exact_json.JSONDecodeError:
        raise ServerLost(f"{url} answered with what is no JSON; is it a vLLM server?") from None


def error_message(data: bytes) -> str:
    """Return the message in an error's body, in one of the forms that these servers have."""
    try:
        body = exact_json.loads(data)
    except exact_json.JSONDecodeError:
        return data.decode(errors="replace").strip()[:300] or "no reason was given"
    if isinstance(body, dict):
        error = body.get("error", body.get("detail", body))
        return str(error.get("message", error) if isinstance(error, dict) else error)[:500]
    return str(body)[:500]


def _broken(url: str, error: Any) -> Exception:
    body = error if isinstance(error, dict) else {"message": error}
    code = body.get("code")
    message = f"The vLLM server {url} broke off: {body.get('message')}"
    if isinstance(code, int) and HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return ServerRefused(message, code)
    return ServerLost(message)


def _unreachable(url: str, error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"The vLLM server {url} did not answer in time."
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = error.os_error.strerror or str(error.os_error)
        return f"The vLLM server {url} cannot be reached ({reason})."
    return f"The connection to the vLLM server {url} broke ({type(error).__name__})."
