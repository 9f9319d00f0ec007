"""Unpacking of an image's layers into a folder: whiteouts, opaque folders, links; nothing is written outside of it.

Links are resolved as in the container: absolute ones start at the folder. Owners are not kept, as a workspace has one user.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO

from hud.errors import UsageError

MOST_FILES = 2_000_000
LARGEST_LAYER_BYTES = 32 << 30
"""Largest sum of a layer's files, in bytes; a sparse file counts with its whole size."""
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_MOST_LINKS = 40


def unpack_layer(layer: IO[bytes], root: Path) -> None:
    """Apply a layer to `root`. Raises `UsageError` for members that an image must not have."""
    added: set[Path] = set()
    total = 0
    with tarfile.open(fileobj=layer, mode="r|") as archive:
        for number, member in enumerate(archive):
            if number >= MOST_FILES:
                raise UsageError(f"A layer has more than {MOST_FILES:,} files.")
            total += member.size
            if total > LARGEST_LAYER_BYTES:
                raise UsageError(f"A layer has more than {LARGEST_LAYER_BYTES >> 30} GB of files.")
            path = _path_of(member.name)
            if not path.parts:
                continue
            folder = folder_inside(root, path.parent)
            if path.name == _OPAQUE:
                for child in folder.iterdir():
                    if child not in added:
                        remove(child)
            elif path.name.startswith(_WHITEOUT):
                remove(folder / _whited_out(member.name, path.name))
            else:
                place = folder / path.name
                _write(archive, member, place, root)
                added.update((place, *place.parents))


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path, root: Path) -> None:
    mode = stat.S_IMODE(member.mode) & 0o1777
    if member.isdir():
        if place.is_symlink() or not place.is_dir():
            remove(place)
            place.mkdir()
        # The workspace's one user owns all files, and must be able to replace them.
        place.chmod(mode | 0o700)
        return
    if member.islnk():
        source = _path_of(member.linkname)
        target = folder_inside(root, source.parent) / source.name
        if not stat.S_ISREG(target.lstat().st_mode if os.path.lexists(target) else 0):
            raise UsageError(
                f"A layer links {member.name} to {member.linkname}, which is no file of the image."
            )
        if target != place:
            remove(place)
            os.link(target, place, follow_symlinks=False)
        return
    if member.isdev():
        if _path_of(member.name).parts[0] == "dev":
            return  # A workspace has its own devices.
        raise UsageError(
            f"A layer has the device or pipe {member.name}, which a workspace cannot have."
        )
    remove(place)
    if member.issym():
        place.symlink_to(member.linkname)
        return
    content = archive.extractfile(member)
    if content is None:
        raise UsageError(f"A layer has {member.name} of an unknown kind.")
    with place.open("xb") as file:
        shutil.copyfileobj(content, file)
    place.chmod(mode | 0o400)


def _path_of(name: str) -> PurePosixPath:
    """Return a member's path below the root."""
    path = PurePosixPath("/" + name)
    if ".." in path.parts or "\0" in name:
        raise UsageError(f"A layer has the path {name!r}, which leaves the image.")
    return path.relative_to(path.anchor)


def _whited_out(member: str, name: str) -> str:
    hidden = name.removeprefix(_WHITEOUT)
    if hidden in ("", ".", ".."):
        raise UsageError(f"A layer has the whiteout {member!r}, which leaves the image.")
    return hidden


def folder_inside(root: Path, path: PurePosixPath) -> Path:
    """Return a folder below `root`, its links resolved inside; missing ones are made. Raises `UsageError` for a file, or too many links."""
    place, left, links = root, list(reversed(path.parts)), 0
    while left:
        name = left.pop()
        if name in ("/", "."):
            continue
        if name == "..":
            place = root if place == root else place.parent
            continue
        child = place / name
        if child.is_symlink():
            links += 1
            if links > _MOST_LINKS:
                raise UsageError(f"A layer has the path {path}, whose links do not end.")
            target = PurePosixPath(os.readlink(child))
            place = root if target.is_absolute() else place
            left.extend(reversed(target.parts))
            continue
        if not os.path.lexists(child):
            child.mkdir()
        elif not child.is_dir():
            raise UsageError(f"A layer has files below {path}, which is no folder.")
        place = child
    return place


def remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    elif os.path.lexists(place):
        place.unlink()
