"""Blobs: large write-once objects, in a folder or an S3-compatible store, through fsspec.
Keys are paths of plain names that begin with the team's id. Blobs are immutable; storing one again has no effect.
Every method blocks.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any
from urllib.parse import parse_qs

import fsspec

from hud.durable_files import replaced_file
from hud.errors import NotFoundError, StoreError, UsageError

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


class Blobs:
    """Blobs under one URL: `file:///folder`, a plain path, or `s3://bucket/prefix?endpoint_url=...`."""

    def __init__(self, url: str) -> None:
        self.url = url
        place, _, query = url.partition("?")
        options: dict[str, Any] = {}
        query_options = {name: values[-1] for name, values in parse_qs(query).items()}
        if endpoint := query_options.pop("endpoint_url", None):
            options["client_kwargs"] = {"endpoint_url": endpoint}
        if query_options:
            raise UsageError(
                f"Storage {place} has no option {min(query_options)!r}; there is endpoint_url."
            )
        try:
            self._fs, self._root = fsspec.core.url_to_fs(place, **options)
        except (ValueError, ImportError) as error:
            raise UsageError(f"Storage {url} cannot be used: {error}.") from error
        self._local = "file" in self._fs.protocol

    def put(self, key: str, data: bytes) -> None:
        """Store bytes under a key, atomically and durably."""
        with self._writing(key) as file:
            file.write(data)

    def put_file(self, key: str, source: IO[bytes]) -> None:
        """Store the content of a file from its current position."""
        with self._writing(key) as file:
            shutil.copyfileobj(source, file, 1 << 20)

    def get(self, key: str) -> bytes:
        """Return the bytes of a blob. Raises `NotFoundError` for an unknown key."""
        with self._translated(key):
            data: bytes = self._fs.cat_file(self._path(key))
            return data

    def exists(self, key: str) -> bool:
        """Return True if there is a blob with this key."""
        with self._translated(key):
            return bool(self._fs.exists(self._path(key)))

    def delete(self, key: str) -> None:
        """Delete a blob, if there is one."""
        with self._translated(key), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(key))

    @contextmanager
    def local(self, key: str) -> Iterator[Path]:
        """Provide a blob as a local file during the block. Raises `NotFoundError` for an unknown key."""
        if self._local:
            path = Path(self._path(key))
            if not path.exists():
                raise NotFoundError(f"There is no blob {key!r}.")
            yield path
            return
        with TemporaryDirectory() as folder:
            path = Path(folder) / "blob"
            with self._translated(key):
                self._fs.get_file(self._path(key), str(path))
            yield path

    def check(self) -> None:
        """Raise `UsageError` if the storage is not writable."""
        key = f"check/{uuid.uuid4().hex}"
        try:
            self.put(key, b"")
            self.delete(key)
        except StoreError as error:
            raise UsageError(str(error)) from error

    @contextmanager
    def _writing(self, key: str) -> Iterator[IO[bytes]]:
        path = self._path(key)
        try:
            # On writing, a bucket or a mount is missing, not a blob.
            with (
                self._translated(key),
                replaced_file(Path(path)) if self._local else self._upload(path) as file,
            ):
                yield file
        except NotFoundError as error:
            raise StoreError(f"Storage {self.url} failed for {key}: {error.__cause__}.") from error

    @contextmanager
    def _upload(self, path: str) -> Iterator[IO[bytes]]:
        file = self._fs.open(path, "wb")
        try:
            yield file
        except BaseException:
            # The file's own `with` would complete the upload of an incomplete blob.
            file.discard()
            file.closed = True
            raise
        file.close()

    def _path(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise UsageError(f"{key!r} is not a valid key of a blob.")
        return f"{self._root}/{key}"

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(f"There is no blob {key!r}.") from error
        except (OSError, ValueError) as error:
            raise StoreError(f"Storage {self.url} failed for {key}: {error}.") from error
        except (
            Exception
        ) as error:  # botocore's exception types are generated; they can be matched only by name.
            if type(error).__module__.startswith(("botocore", "aiobotocore", "aiohttp")):
                raise StoreError(f"Storage {self.url} failed for {key}: {error}.") from error
            raise
