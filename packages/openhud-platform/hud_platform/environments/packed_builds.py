"""Builds packed for other machines: source and installed packages, or a container image, in one archive, named by its SHA-256.

What was installed here is what runs there, file for file: a worker needs no package index. An archive with packages is
for one platform (system, processor, Python); one without, for all.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa

from hud import exact_json
from hud.errors import NotFoundError
from hud.eval.runtimes.containers.images import save_image
from hud.fleet.builds.build_cache import DESCRIPTION, PACKAGES, PLACE, SOURCE, site_packages
from hud.fleet.builds.shared_packages import INSTALLER, LINK
from hud.fleet.capacity import platform_tag
from hud_platform.environments.registry import SUCCEEDED, find_build
from hud_platform.store import Store, tables
from hud_platform.store.queries import Row

MOST_IMAGE_BYTES = 32 << 30
"""Size in bytes of the largest container image that is packed, uncompressed."""
_LEFT_OUT = frozenset({"__pycache__"})
_packing = threading.Lock()
"""One at a time: packing is rare, and compresses."""


class PackedBuilds:
    """The packed builds of one team."""

    def __init__(self, store: Store, team: str) -> None:
        self.store = store
        self.team = team

    def describe(self, build_id: str) -> dict[str, Any]:
        """Return `digest`, `size` in bytes and `entry` of a build, which is packed where it was not yet.

        Raises `NotFoundError` for a build that is not the team's, or did not succeed, `InfrastructureFault` for a container
        image that the platform's container engine has no more.
        """
        row = find_build(self.store, self.team, build_id)
        if row.status != SUCCEEDED:
            raise NotFoundError(f"Build {build_id!r} cannot be fetched: it did not succeed.")
        digest = row.digest
        if digest is None:
            with _packing:
                digest = find_build(self.store, self.team, build_id).digest or self._pack(row)
        with self.store.blobs.local(key_of(digest)) as path:
            return {"digest": digest, "size": path.stat().st_size}

    def find(self, digest: str) -> str:
        """Return the blob of a packed build. Raises `NotFoundError` where the team has none of this digest."""
        builds = tables.builds
        own_build = (builds.c.digest == digest, builds.c.team_id == self.team)
        if self.store.value(sa.select(builds.c.id).where(*own_build).limit(1)) is None:
            raise NotFoundError(f"There is no packed build {digest!r}.")
        return key_of(digest)

    def _pack(self, row: Row) -> str:
        with tempfile.TemporaryFile() as file:
            if image := row.manifest.get("image"):
                save_image(image, file, MOST_IMAGE_BYTES)
            else:
                pack(Path(row.folder), row.manifest.get("entry", ""), file)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            self.store.blobs.put_file(key_of(digest), file)
        builds = tables.builds
        self.store.write(sa.update(builds).where(builds.c.id == row.id).values(digest=digest))
        return digest


def key_of(digest: str) -> str:
    """Return the key of a packed build's blob."""
    return f"packed-builds/{digest}.tar.gz"


def has_packages(folder: Path) -> bool:
    """True where a build installed packages of its own: it runs on one platform alone."""
    return (folder / "venv").is_dir()


def pack(folder: Path, entry: str, file: IO[bytes]) -> None:
    """Write a build's folder as a tar.gz; equal folders give equal bytes."""
    packages = has_packages(folder)
    about = {"entry": entry, "platform": platform_tag() if packages else None}
    with (
        gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w|") as tar,
    ):
        _add_bytes(tar, DESCRIPTION, exact_json.dumps(about, option=exact_json.OPT_SORT_KEYS))
        for path in _files(folder / "source"):
            _add(tar, path, f"{SOURCE}/{path.relative_to(folder / 'source').as_posix()}")
        if packages:
            _add_packages(tar, folder)


def _add_packages(tar: tarfile.TarFile, folder: Path) -> None:
    root = site_packages(folder / "venv")
    shared = {path.parent.name for path in root.glob("*.dist-info/INSTALLER") if _is_ours(path)}
    for path in _files(root):
        inside = path.relative_to(root)
        if inside.parts[0] in shared or inside.as_posix() == LINK:
            continue
        name = f"{PACKAGES}/{inside.as_posix()}"
        if len(inside.parts) == 1 and (
            path.suffix == ".pth" or path.name.startswith("__editable__")
        ):
            # They name the source by its place on this machine.
            text = path.read_text(encoding="utf-8").replace(str(folder), PLACE)
            _add_bytes(tar, name, text.encode())
        else:
            _add(tar, path, name)


def _is_ours(installer: Path) -> bool:
    return installer.read_text(encoding="utf-8", errors="replace").strip() == INSTALLER


def _files(root: Path) -> Iterator[Path]:
    """Yield files and links below a folder, in a fixed order."""
    for path in sorted(root.rglob("*")):
        if not _LEFT_OUT.isdisjoint(path.relative_to(root).parts):
            continue
        if path.is_symlink() or path.is_file():
            yield path


def _add(tar: tarfile.TarFile, path: Path, name: str) -> None:
    info = tarfile.TarInfo(name)
    if path.is_symlink():
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        tar.addfile(info)
        return
    status = path.stat()
    info.size, info.mode = status.st_size, 0o755 if status.st_mode & 0o100 else 0o644
    with path.open("rb") as content:
        tar.addfile(info, content)


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    tar.addfile(info, io.BytesIO(content))
