"""Sender of a version of the weights to the receivers of serving nodes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from pydantic import ValidationError

from hud import exact_json
from hud.errors import HudError, InfrastructureFault, UsageError
from hud.outbound import read_bounded
from hud_integrations.vllm.server import error_message
from hud_integrations.vllm.weight_files.chunk import CHUNK_BYTES, encode
from hud_integrations.vllm.weight_files.folder import Manifest, WeightFolder, read_chunk

log = logging.getLogger("hud.vllm")

IN_FLIGHT = 4
"""Chunks on their way to a node at once."""
CHUNK_SECONDS = 120.0
"""Time-out of a chunk, and of every other call."""
FINISH_SECONDS = 600.0
"""Time-out of the last call, after which the version is on the node's disk."""
_WRONG = (401, 403, 404, 405)
"""Statuses of a wrong key or address, which a repetition does not change."""


@dataclass(frozen=True)
class _Chunk:
    file: str
    offset: int
    size: int


@dataclass(frozen=True)
class _Call:
    query: dict[str, str]
    content: bytes


class Version:
    """A version of a model's weights, and the earlier ones that are still on this disk, newest last."""

    def __init__(
        self, model: str, folder: WeightFolder, earlier: tuple[WeightFolder, ...] = ()
    ) -> None:
        self.model = model
        self.folder = folder
        self.earlier = earlier
        self._changes: dict[tuple[_Chunk, str], asyncio.Future[_Call]] = {}

    async def call(self, chunk: _Chunk, base: WeightFolder | None) -> _Call:
        """Return the call that sends a chunk. Changes are computed once, for all nodes that have the same base."""
        if base is None:
            return await asyncio.to_thread(self._encoded, chunk, None)
        place = chunk, base.version
        if place not in self._changes:
            encoding = asyncio.to_thread(self._encoded, chunk, base)
            self._changes[place] = asyncio.ensure_future(encoding)
        return await asyncio.shield(self._changes[place])

    def _encoded(self, chunk: _Chunk, base: WeightFolder | None) -> _Call:
        content = read_chunk(self.folder.path / chunk.file, chunk.offset, chunk.size)
        if content is None:
            raise InfrastructureFault(f"{self.folder.path} was changed while it was sent.")
        earlier = None
        if base is not None:
            earlier = read_chunk(base.path / chunk.file, chunk.offset, chunk.size)
        encoding, body = encode(content, earlier)
        query = {
            "offset": str(chunk.offset),
            "size": str(chunk.size),
            "sha256": hashlib.sha256(content).hexdigest(),
            "encoding": encoding,
        }
        if base is not None and encoding != "plain":
            query["base"] = base.version
        return _Call(query, body)


@dataclass(frozen=True)
class Placement:
    """A version on a node."""

    folder: str
    """Its path there."""
    sent_bytes: int
    """Content of the calls; 0 if it was there."""
    total_bytes: int
    seconds: float


class Node:
    """The receiver of one serving node. Belongs to the event loop of its `session`."""

    def __init__(self, url: str, session: aiohttp.ClientSession, key: str | None) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._sending = asyncio.Lock()
        """Held while a version is sent: servers of one node need it once."""

    async def place(self, version: Version) -> Placement:
        """Send what the node lacks of a version; return where it is.

        Raises `InfrastructureFault` for a node that does not answer, `UsageError` for a refusal.
        """
        async with self._sending:
            began = time.monotonic()
            manifest = await asyncio.to_thread(lambda: version.folder.manifest)
            where = f"/weights/{version.model}"
            listed = await self._json("GET", where)
            complete = {name: _manifest(entry) for name, entry in listed["versions"].items()}
            total = sum(entry.size for entry in manifest.files.values())
            name = version.folder.version
            if complete.get(name) == manifest:
                return Placement(listed["versions"][name]["folder"], 0, total, 0.0)
            base = await asyncio.to_thread(_base, version.earlier, complete)
            lacking = _chunks(manifest, set(listed["digests"]))
            sent = await self._send(f"{where}/{name}", lacking, version, base)
            finished = await self._json(
                "POST", f"{where}/{name}", body=manifest.model_dump(), seconds=FINISH_SECONDS
            )
            placement = Placement(finished["folder"], sent, total, time.monotonic() - began)
        log.info(
            "Weights %s of %s: %.1f of %.1f MB sent to %s in %.1f s.",
            *(name, version.model, sent / 1e6, total / 1e6, self.url, placement.seconds),
        )
        return placement

    async def _send(
        self, where: str, chunks: Sequence[_Chunk], version: Version, base: WeightFolder | None
    ) -> int:
        """Send chunks, some at once; return the bytes of their content."""
        waiting = iter(chunks)

        async def send_some() -> int:
            sent = 0
            for chunk in waiting:
                call = await version.call(chunk, base)
                path = f"{where}/{chunk.file}"
                await self._ask("PUT", path, query=call.query, content=call.content)
                sent += len(call.content)
            return sent

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(send_some()) for _ in range(IN_FLIGHT)]
        except* HudError as errors:
            raise errors.exceptions[0] from None
        return sum(task.result() for task in tasks)

    async def _json(
        self, method: str, path: str, *, body: Any = None, seconds: float = CHUNK_SECONDS
    ) -> dict[str, Any]:
        content = None if body is None else exact_json.dumps(body)
        answer = await self._ask(method, path, content=content, seconds=seconds)
        try:
            parsed = exact_json.loads(answer)
            if isinstance(parsed, dict):
                return parsed
        except exact_json.JSONDecodeError:
            pass
        raise UsageError(f"{self.url} is no receiver of weights.")

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        content: bytes | None = None,
        seconds: float = CHUNK_SECONDS,
    ) -> bytes:
        headers = {**self._headers, "Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(seconds),
                self._session.request(
                    method, self.url + path, params=query, data=content, headers=headers
                ) as response,
            ):
                answer = await read_bounded(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InfrastructureFault(
                f"The receiver of weights {self.url} does not answer ({type(error).__name__}: {error})."
            ) from error
        if response.status < 300:
            return answer
        problem = (
            f"The receiver of weights {self.url} answers {response.status}: {error_message(answer)}"
        )
        raise (UsageError if response.status in _WRONG else InfrastructureFault)(problem)


def _base(earlier: Sequence[WeightFolder], complete: dict[str, Manifest]) -> WeightFolder | None:
    """Return the newest version that is complete there and the same here."""
    for folder in reversed(earlier):
        there = complete.get(folder.version)
        if there is not None and folder.path.is_dir() and there == folder.manifest:
            return folder
    return None


def _chunks(manifest: Manifest, digests: set[str]) -> list[_Chunk]:
    return [
        _Chunk(name, offset, min(CHUNK_BYTES, entry.size - offset))
        for name, entry in manifest.files.items()
        if entry.sha256 not in digests
        for offset in _offsets(entry.size)
    ]


def _offsets(size: int) -> Iterator[int]:
    yield 0  # An empty file is one empty chunk.
    yield from range(CHUNK_BYTES, size, CHUNK_BYTES)


def _manifest(entry: Any) -> Manifest:
    try:
        return Manifest(files=entry["files"])
    except (ValidationError, KeyError, TypeError) as error:
        raise InfrastructureFault(f"A receiver of weights lists no manifests: {error}.") from error
