"""Receiver of weights on a serving node: writes versions as folders, from which the unmodified servers of the node load.

    GET  /weights/MODEL                   the versions that are complete, oldest first
    PUT  /weights/MODEL/VERSION/FILE      one chunk of a file, at an offset
    POST /weights/MODEL/VERSION           the manifest: the version is complete, or the call fails

A version appears under its name once every file has its size and digest, and is on the disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, HTTPException, Query, Request
from fastapi import Path as InPath
from fastapi.responses import JSONResponse

from hud.durable_files import make_folder, rename_folder
from hud.errors import HudError, UsageError
from hud_integrations.vllm.weight_files.chunk import CHUNK_BYTES, Encoding, decode
from hud_integrations.vllm.weight_files.folder import MANIFEST, NAME, Manifest, entry_of, read_chunk

KEPT = 2
"""Versions of a model that are kept: the newest, and the one before, which servers may still load and changes refer to."""
_UNFINISHED = ".receiving-"

Name = Annotated[str, InPath(pattern=NAME)]


class WeightVersions:
    """Versions of the weights under a folder, one subfolder for each model. `served`: a folder that servers loaded at their start."""

    def __init__(self, root: Path, served: Path | None = None) -> None:
        self._root = root.resolve()
        make_folder(self._root)
        self._served = {}
        if served is not None:
            paths = (path for path in served.resolve().iterdir() if path.is_file())
            self._served = {entry_of(path).sha256: path for path in paths}

    def complete(self, model: str) -> dict[str, Manifest]:
        """Return the manifests of a model's complete versions, oldest first."""
        marks = sorted(
            (self._root / model).glob(f"*/{MANIFEST}"), key=lambda path: path.stat().st_mtime_ns
        )
        return {
            mark.parent.name: Manifest.model_validate_json(mark.read_bytes())
            for mark in marks
            if not mark.parent.name.startswith(".")
        }

    def folder(self, model: str, version: str) -> Path:
        """Return the folder of a version."""
        return self._root / model / version

    def digests(self, model: str) -> set[str]:
        """Return the digests of the files that need not be sent again."""
        entries = (
            entry for manifest in self.complete(model).values() for entry in manifest.files.values()
        )
        return {*self._served, *(entry.sha256 for entry in entries)}

    def write(self, model: str, version: str, file: str, offset: int, chunk: bytes) -> None:
        """Write a chunk of a file of a version that is not complete."""
        folder = self._unfinished(model, version)
        make_folder(folder)
        handle = os.open(folder / file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(handle, chunk, offset)
        finally:
            os.close(handle)

    def finish(self, model: str, version: str, manifest: Manifest) -> Path:
        """Make a version complete, durably, and remove the oldest ones; return its folder.

        Files that were not sent are linked from where their digest is. Raises `UsageError` where a file is missing or differs.
        """
        folder, unfinished = self.folder(model, version), self._unfinished(model, version)
        if self.complete(model).get(version) == manifest:
            shutil.rmtree(unfinished, ignore_errors=True)
            return folder
        make_folder(unfinished)
        self._link_rest(model, unfinished, manifest)
        for name, entry in manifest.files.items():
            os.truncate(unfinished / name, entry.size)
            if entry_of(unfinished / name) != entry:
                (unfinished / name).unlink()
                raise UsageError(f"{name} has another SHA-256 than its manifest: send it again.")
        (unfinished / MANIFEST).write_text(manifest.model_dump_json())
        shutil.rmtree(folder, ignore_errors=True)
        rename_folder(unfinished, folder)
        self._tidy(model, version)
        return folder

    def _unfinished(self, model: str, version: str) -> Path:
        return self._root / model / f"{_UNFINISHED}{version}"

    def _link_rest(self, model: str, folder: Path, manifest: Manifest) -> None:
        """Link the files that were not sent, and remove what an earlier attempt left."""
        for path in folder.iterdir():
            if path.name not in manifest.files:
                path.unlink()
        have = dict(self._served)
        for version, complete in self.complete(model).items():
            for name, entry in complete.files.items():
                have[entry.sha256] = self.folder(model, version) / name
        for name, entry in manifest.files.items():
            if (folder / name).exists():
                continue
            if entry.sha256 not in have:
                raise UsageError(f"{name} was not sent.")
            _link(have[entry.sha256], folder / name)

    def _tidy(self, model: str, newest: str) -> None:
        older = [version for version in self.complete(model) if version != newest]
        for version in older[: 1 - KEPT]:
            shutil.rmtree(self.folder(model, version), ignore_errors=True)
        for path in (self._root / model).glob(f"{_UNFINISHED}*"):
            shutil.rmtree(
                path, ignore_errors=True
            )  # Of senders that died: one trainer sends one version at a time.


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # On another file system.
        shutil.copyfile(source, target)


def application(versions: WeightVersions, key: str | None) -> FastAPI:
    """Return the receiver's ASGI application; with `key`, every call needs it as its bearer token."""

    def admit(authorization: Annotated[str, Header()] = "") -> None:
        expected = f"Bearer {key}".encode()
        if key is not None and not hmac.compare_digest(authorization.encode(), expected):
            raise HTTPException(401, "The receiver of weights needs its key.")

    app = FastAPI(openapi_url=None, dependencies=[Depends(admit)])

    @app.exception_handler(HudError)
    async def refuse(_: Request, error: HudError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, error.status)

    @app.get("/weights/{model}")
    def listed(model: Name) -> dict[str, Any]:
        return {
            "versions": {
                version: {"folder": str(versions.folder(model, version)), **manifest.model_dump()}
                for version, manifest in versions.complete(model).items()
            },
            "digests": sorted(versions.digests(model)),
        }

    @app.put("/weights/{model}/{version}/{file}", status_code=204)
    async def write(
        request: Request,
        model: Name,
        version: Name,
        file: Name,
        offset: Annotated[int, Query(ge=0)],
        size: Annotated[int, Query(ge=0, le=CHUNK_BYTES)],
        sha256: Annotated[str, Query(pattern="^[0-9a-f]{64}$")],
        encoding: Encoding = "plain",
        base: Annotated[str | None, Query(pattern=NAME)] = None,
    ) -> None:
        content = await _body(request)

        def write_chunk() -> None:
            earlier = None
            if base is not None:
                earlier = read_chunk(versions.folder(model, base) / file, offset, size)
            chunk = decode(encoding, content, size, earlier)
            if hashlib.sha256(chunk).hexdigest() != sha256:
                raise UsageError(
                    f"The chunk of {file} at {offset} has another SHA-256: send it again."
                )
            versions.write(model, version, file, offset, chunk)

        await asyncio.to_thread(write_chunk)

    @app.post("/weights/{model}/{version}")
    def finish(model: Name, version: Name, manifest: Manifest) -> dict[str, str]:
        return {"folder": str(versions.finish(model, version, manifest))}

    return app


async def _body(request: Request) -> bytes:
    """Return a request's body. Raises `UsageError` for one that is longer than a chunk."""
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > CHUNK_BYTES:
            raise UsageError(f"A chunk has at most {CHUNK_BYTES:,} bytes.")
    return bytes(content)
