"""Store of unpacked images in `images` of HUD_HOME: each is unpacked or built once, and never changed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hud import settings
from hud.durable_files import write_file
from hud.environment.workspace.sandbox.mounts import SYSTEM_PATH
from hud.environment.workspace.sandbox.root_image import IMAGE_USER, RootImage
from hud.errors import UsageError
from hud_integrations.containers.image_archive import ImageArchive
from hud_integrations.containers.image_config import LARGEST_USER, read_config
from hud_integrations.containers.layers import remove, unpack_layer

_OWN_FOLDERS = ("proc", "dev", "sys", "tmp", "run", "run/hud", "etc", "var")
"""Folders on which a workspace mounts, or in which it writes: they must be no links."""
_OWN_FILES = ("etc/hosts", "etc/hostname", "etc/resolv.conf")
_ROOT_NAMES = ("", "root", "0")


@dataclass(frozen=True)
class StoredImage:
    """An unpacked image, and its configuration as in the OCI specification (`Env`, `WorkingDir`, `User`)."""

    key: str
    root: Path
    config: dict[str, Any]

    def configured(self) -> RootImage:
        """Return the image for a workspace. Raises `UsageError` for a user that its /etc/passwd lacks."""
        config = read_config(self.config)
        user, home = _user(self.root, config.User or "")
        variables = {"PATH": SYSTEM_PATH, "HOME": home, "SHELL": "/bin/sh", **config.variables}
        return RootImage(self.root, config.WorkingDir or "/", variables, user)


def image(path: str | Path) -> RootImage:
    """Return an image for `env.workspace(image=...)`: a folder in OCI layout, or an archive by skopeo or docker save.

    It is unpacked into `images` of HUD_HOME at first. Raises `UsageError` for an unreadable or hostile one.
    """
    return unpacked(Path(path).expanduser()).configured()


def add_image(path: str | Path, reference: str) -> RootImage:
    """Unpack an image, and name it: a Dockerfile's `FROM reference` is this one in builds without a daemon."""
    stored = unpacked(Path(path).expanduser())
    place = _reference_path(reference)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_file(place, stored.key.encode())
    return stored.configured()


def named_image(reference: str) -> StoredImage | None:
    """Return the image of a reference that `add_image` named; None without one."""
    try:
        return stored_image(_reference_path(reference).read_text())
    except FileNotFoundError:
        return None


def unpacked(path: Path) -> StoredImage:
    """Return an image of a file or folder, unpacked if it was not."""
    with ImageArchive.open(path) as archive:
        stored = stored_image(archive.digest)
        if stored is None:
            with new_image(archive.digest, archive.config.get("config") or {}) as root:
                for layer in archive.layers():
                    unpack_layer(layer, root)
            stored = stored_image(archive.digest)
    assert stored is not None
    return stored


def stored_image(key: str) -> StoredImage | None:
    """Return a stored image; None if there is none of this key."""
    root = _store() / key
    try:
        return StoredImage(key, root, json.loads(_config_path(root).read_bytes()))
    except FileNotFoundError:
        return None


@contextmanager
def new_image(key: str, config: dict[str, Any]) -> Iterator[Path]:
    """A folder that becomes the root of the image `key` at the end of the block; nothing remains of a block that fails.

    `config` is read at the block's end.
    """
    store = _store()
    store.mkdir(parents=True, exist_ok=True)
    unpacking = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=store))
    root = store / key
    try:
        yield unpacking
        prepare(unpacking)
        if not root.is_dir():
            unpacking.rename(root)
        write_file(_config_path(root), json.dumps(config).encode())
    finally:
        if unpacking.exists():
            shutil.rmtree(unpacking)


def prepare(root: Path) -> None:
    """Make the mount points of a workspace, and pass the files to its user. Raises `UsageError` where the image has no folder there."""
    for name in _OWN_FOLDERS:
        place = root / name
        if place.is_symlink():
            raise UsageError(f"The image has a link at /{name}, where a workspace needs a folder.")
        if place.exists() and not place.is_dir():
            raise UsageError(f"The image has a file at /{name}, where a workspace needs a folder.")
        place.mkdir(exist_ok=True)
    for name in _OWN_FILES:
        remove(root / name)
        (root / name).touch()
    root.chmod(0o755)
    if os.geteuid() == 0:
        for folder, folders, files in os.walk(root):
            for path in (folder, *(os.path.join(folder, name) for name in (*folders, *files))):
                os.chown(path, IMAGE_USER, IMAGE_USER, follow_symlinks=False)


def _store() -> Path:
    return settings.load().home / "images"


def _config_path(root: Path) -> Path:
    return root.with_name(f"{root.name}.json")


def _reference_path(reference: str) -> Path:
    return _store() / "references" / hashlib.sha256(reference.encode()).hexdigest()


def _user(root: Path, name: str) -> tuple[int, str]:
    """Return the id and the home of an image's user."""
    name = name.partition(":")[0]
    accounts = root / "etc/passwd"
    if accounts.is_file() and not accounts.is_symlink():
        for line in accounts.read_text(errors="replace").splitlines():
            fields = line.split(":")
            if len(fields) >= 6 and (name or "root") in (fields[0], fields[2]) and _is_user(fields[2]):  # fmt: skip
                return int(fields[2]), fields[5] or "/"
    if name in _ROOT_NAMES:
        return 0, "/root"
    if _is_user(name):
        return int(name), "/"
    raise UsageError(f"The image's user {name!r} is not in its /etc/passwd.")


def _is_user(text: str) -> bool:
    """Return whether a text is a user id."""
    return text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= LARGEST_USER
