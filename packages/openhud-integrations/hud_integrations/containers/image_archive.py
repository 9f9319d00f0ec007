"""Reader of images: a folder in OCI layout, or an archive by `skopeo copy` or `docker save`; digests are verified."""

from __future__ import annotations

import gzip
import hashlib
import json
import platform
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from hud.errors import UsageError

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_CHUNK = 1 << 20
_DOCUMENT_BYTES = 4 << 20
LARGEST_IMAGE_BYTES = 32 << 30
"""Largest sum of an image's uncompressed layers, in bytes."""


class ImageArchive:
    """An opened image: its configuration and layers."""

    def __init__(self, path: Path, archive: tarfile.TarFile | None) -> None:
        self._path, self._archive = path, archive
        config, self._layers = self._manifest()
        self.digest = hashlib.sha256(config).hexdigest()
        """Digest of the configuration, which names all layers: the image's id."""
        self.config: dict[str, Any] = json.loads(config)
        self._diff_ids: list[str] = self.config["rootfs"]["diff_ids"]
        if len(self._diff_ids) != len(self._layers):
            raise UsageError(
                f"{path} names {len(self._layers)} layers and {len(self._diff_ids)} digests of them."
            )

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[ImageArchive]:
        """Open an image. Raises `UsageError` for anything else."""
        try:
            if path.is_dir():
                yield cls(path, None)
            else:
                with tarfile.open(path) as archive:
                    yield cls(path, archive)
        except (OSError, KeyError, TypeError, ValueError, EOFError, tarfile.TarError) as error:
            raise UsageError(
                f"{path} is no readable image in OCI layout or by docker save: {error}."
            ) from error

    def layers(self) -> Iterator[IO[bytes]]:
        """Yield the uncompressed layers, lowest first, each after its digest was verified.

        Raises `UsageError` for a wrong digest, and for layers beyond the limit.
        """
        left = LARGEST_IMAGE_BYTES
        for name, expected in zip(self._layers, self._diff_ids, strict=True):
            with self._uncompressed(name) as layer:
                digest = hashlib.sha256()
                while chunk := layer.read(_CHUNK):
                    digest.update(chunk)
                    left -= len(chunk)
                    if left < 0:
                        raise UsageError(
                            f"{self._path} unpacks to more than {LARGEST_IMAGE_BYTES >> 30} GB."
                        )
            if f"sha256:{digest.hexdigest()}" != expected:
                raise UsageError(
                    f"{self._path}: the layer {name} does not have its digest {expected}."
                )
            with self._uncompressed(name) as layer:
                yield layer

    def _manifest(self) -> tuple[bytes, list[str]]:
        """Return the configuration, and the names of the layers."""
        if not self._has("index.json"):
            (entry,) = json.loads(self._document("manifest.json"))
            return self._document(entry["Config"]), entry["Layers"]
        descriptors = json.loads(self._document("index.json"))["manifests"]
        manifest = json.loads(self._blob(self._chosen(descriptors)))
        if "manifests" in manifest:
            manifest = json.loads(self._blob(self._chosen(manifest["manifests"])))
        layers = [_blob_name(layer["digest"]) for layer in manifest["layers"]]
        return self._blob(manifest["config"]["digest"]), layers

    def _chosen(self, descriptors: list[dict[str, Any]]) -> str:
        """Return the digest of the manifest for this machine."""
        architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
        own = [
            entry["digest"]
            for entry in descriptors
            if entry.get("platform", {}).get("architecture", architecture) == architecture
        ]
        if len(own) != 1:
            raise UsageError(
                f"{self._path} holds {len(own)} images for {architecture}; it must hold one."
            )
        return str(own[0])

    def _blob(self, digest: str) -> bytes:
        content = self._document(_blob_name(digest))
        if f"sha256:{hashlib.sha256(content).hexdigest()}" != digest:
            raise UsageError(f"{self._path}: a document does not have its digest {digest}.")
        return content

    def _document(self, name: str) -> bytes:
        with self._open(name) as stream:
            content = stream.read(_DOCUMENT_BYTES + 1)
        if len(content) > _DOCUMENT_BYTES:
            raise UsageError(f"{self._path}: {name} has more than {_DOCUMENT_BYTES >> 20} MB.")
        return content

    def _has(self, name: str) -> bool:
        if self._archive is None:
            return (self._path / name).is_file()
        return name in self._archive.getnames()

    @contextmanager
    def _uncompressed(self, name: str) -> Iterator[IO[bytes]]:
        with self._open(name) as stream:
            magic = stream.read(4)
            stream.seek(0)
            if magic == b"\x28\xb5\x2f\xfd":
                raise UsageError(
                    f"{self._path}: the layer {name} is compressed by zstd; write it with gzip."
                )
            if magic[:2] == b"\x1f\x8b":
                with gzip.open(stream) as layer:
                    yield layer  # type: ignore[misc]
            else:
                yield stream

    def _open(self, name: str) -> IO[bytes]:
        if ".." in PurePosixPath(name).parts or name.startswith("/"):
            raise UsageError(f"{self._path} names a file outside of itself: {name}.")
        if self._archive is None:
            return (self._path / name).open("rb")
        stream = self._archive.extractfile(name)
        if stream is None:
            raise UsageError(f"{self._path}: {name} is no file.")
        return stream


def _blob_name(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise UsageError(f"An image names a part by {digest!r}, which is no sha256 digest.")
    return "blobs/sha256/" + digest.removeprefix("sha256:")
