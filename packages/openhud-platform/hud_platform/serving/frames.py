"""Frames between a server and its engine's process: a JSON header and an optional body of bytes.

    4 bytes header length · 4 bytes body length · header · body

A header is a list: kind, number of the call or stream, arguments. Bodies are JSON; both sides parse them off the event
loop.
"""

from __future__ import annotations

import struct
from asyncio import IncompleteReadError, StreamReader
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from hud import errors, exact_json
from hud.errors import HudError, OverloadedError, PlatformError
from hud.trace import SamplingParams
from hud.trace.sampled.pictures import Picture
from hud_platform.models.records import ModelRecord
from hud_platform.serving.token_engine import EngineDownError, TokenRequest

_LENGTHS = struct.Struct(">II")
_MODEL: TypeAdapter[ModelRecord] = TypeAdapter(ModelRecord)
_KINDS: dict[str, type[HudError]] = {
    kind.__name__: kind
    for kind in (*vars(errors).values(), OverloadedError, EngineDownError)
    if isinstance(kind, type) and issubclass(kind, HudError)
}


def pack(header: list[Any], body: bytes = b"") -> bytes:
    """Return a frame."""
    head = exact_json.dumps(header)
    return b"".join((_LENGTHS.pack(len(head), len(body)), head, body))


async def read_frame(reader: StreamReader) -> tuple[list[Any], bytes] | None:
    """Return the next header and body; None at the end of the stream."""
    try:
        head, body = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        header: list[Any] = exact_json.loads(await reader.readexactly(head))
        return header, await reader.readexactly(body) if body else b""
    except (IncompleteReadError, ConnectionError):
        return None


def pack_model(model: ModelRecord) -> Any:
    """Return a model's record as plain data for a header."""
    return _MODEL.dump_python(model, mode="json")


def read_model(packed: Any) -> ModelRecord:
    """Return the record of packed data."""
    return _MODEL.validate_python(packed)


def pack_request(request: TokenRequest) -> Any:
    """Return a request as plain data for a header."""
    return [
        request.prompt,
        asdict(request.params),
        list(request.stop_ids),
        request.top_logprobs,
        request.tenant,
        request.grammar,
        [picture.model_dump() for picture in request.pictures],
        request.followed,
    ]


def read_request(packed: Any) -> TokenRequest:
    """Return the request of packed data."""
    prompt, params, stop_ids, top_logprobs, tenant, grammar, pictures, followed = packed
    params["stop"] = tuple(params["stop"])
    return TokenRequest(
        prompt,
        SamplingParams(**params),
        frozenset(stop_ids),
        top_logprobs,
        tenant,
        grammar,
        tuple(Picture(**picture) for picture in pictures),
        followed,
    )


def pack_error(error: BaseException) -> list[Any]:
    """Return an error as plain data. A `HudError`: class, sentence and attributes. Any other: only the class."""
    kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _KINDS), None)
    if kind is None:
        sentence = f"The engine failed ({type(error).__name__}); see the server's log."
        return ["HudError", sentence]
    if isinstance(error, OverloadedError | EngineDownError):
        return [kind, str(error), error.retry_after]
    if isinstance(error, PlatformError):
        return [kind, str(error), error.status]
    return [kind, str(error)]


def read_error(packed: list[Any]) -> HudError:
    """Return the error of packed data."""
    kind, *arguments = packed
    return _KINDS[kind](*arguments)
