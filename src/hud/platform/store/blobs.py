"""Blobs: large things that are written once, in a folder or an S3-compatible store, behind fsspec.

Keys are paths of plain names, the team's id first. What a key holds never changes; putting it again is harmless.
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

from hud.errors import NotFoundError, StoreError, UsageError

_KEY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")


class Blobs:
    """The blobs under one URL: `file:///folder`, a plain path, or `s3://bucket/prefix?endpoint_url=...`."""

    def __init__(self, url: str) -> None:
        self.url = url
        place, _, query = url.partition("?")
        options: dict[str, Any] = {}
        given = {name: values[-1] for name, values in parse_qs(query).items()}
        if endpoint := given.pop("endpoint_url", None):
            options["client_kwargs"] = {"endpoint_url": endpoint}
        if given:
            raise UsageError(
                f"Storage {place} has no option {min(given)!r}; there is endpoint_url."
            )
        try:
            self._fs, self._root = fsspec.core.url_to_fs(place, **options)
        except (ValueError, ImportError) as error:
            raise UsageError(f"Storage {url} cannot be used: {error}.") from error
        self._local = "file" in self._fs.protocol

    def put(self, key: str, data: bytes) -> None:
        """Store bytes under a key: all of them or nothing."""
        with self._writing(key) as file:
            file.write(data)

    def put_file(self, key: str, source: IO[bytes]) -> None:
        """Store what a file holds from here on."""
        with self._writing(key) as file:
            shutil.copyfileobj(source, file, 1 << 20)

    def get(self, key: str) -> bytes:
        """Return what a key holds. Raises `NotFoundError` for one that holds nothing."""
        with self._told(key):
            data: bytes = self._fs.cat_file(self._path(key))
            return data

    def exists(self, key: str) -> bool:
        """True where a key holds something."""
        with self._told(key):
            return bool(self._fs.exists(self._path(key)))

    def delete(self, key: str) -> None:
        """Forget a key, if there is one."""
        with self._told(key), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(key))

    @contextmanager
    def local(self, key: str) -> Iterator[Path]:
        """A local file with what a key holds, for as long as the block lasts. Raises `NotFoundError` for no blob."""
        if self._local:
            path = Path(self._path(key))
            if not path.exists():
                raise NotFoundError(f"There is no blob {key!r}.")
            yield path
            return
        with TemporaryDirectory() as folder:
            path = Path(folder) / "blob"
            with self._told(key):
                self._fs.get_file(self._path(key), str(path))
            yield path

    def check(self) -> None:
        """Raise `UsageError` where nothing can be written."""
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
            # What was not there was a bucket or a mount, and no blob.
            with (
                self._told(key),
                self._new_file(path) if self._local else self._upload(path) as file,
            ):
                yield file
        except NotFoundError as error:
            raise StoreError(f"Storage {self.url} failed for {key}: {error.__cause__}.") from error

    @contextmanager
    def _new_file(self, path: str) -> Iterator[IO[bytes]]:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(f"{path}.{uuid.uuid4().hex}.part")
        try:
            with temporary.open("wb") as file:
                yield file
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    @contextmanager
    def _upload(self, path: str) -> Iterator[IO[bytes]]:
        file = self._fs.open(path, "wb")
        try:
            yield file
        except BaseException:
            # Its own `with` would complete the upload of the half that there is.
            file.discard()
            file.closed = True
            raise
        file.close()

    def _path(self, key: str) -> str:
        if not _KEY.fullmatch(key):
            raise UsageError(f"{key!r} is no key of a blob.")
        return f"{self._root}/{key}"

    @contextmanager
    def _told(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(f"There is no blob {key!r}.") from error
        except (OSError, ValueError) as error:
            raise StoreError(f"Storage {self.url} failed for {key}: {error}.") from error
        except Exception as error:  # botocore raises kinds of its own, by name only.
            if type(error).__module__.startswith(("botocore", "aiobotocore", "aiohttp")):
                raise StoreError(f"Storage {self.url} failed for {key}: {error}.") from error
            raise
