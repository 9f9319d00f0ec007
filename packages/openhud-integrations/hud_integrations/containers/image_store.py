"""Store of unpacked images, by the digest of their configuration: each is unpacked once."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hud import settings
from hud.environment.workspace.sandbox.mounts import SYSTEM_PATH
from hud.environment.workspace.sandbox.root_image import IMAGE_USER, RootImage
from hud.errors import UsageError
from hud_integrations.containers.image_archive import ImageArchive
from hud_integrations.containers.layers import unpack_layer

_OWN_FOLDERS = ("proc", "dev", "sys", "tmp", "run", "run/hud", "etc", "var")
"""Folders on which a workspace mounts, or in which it writes: they must be no links."""
_OWN_FILES = ("etc/hosts", "etc/hostname", "etc/resolv.conf")
_ROOT_NAMES = ("", "root", "0")


def image(path: str | Path) -> RootImage:
    """Return an image for `env.workspace(image=...)`: a folder in OCI layout, or an archive by skopeo or docker save.

    It is unpacked into `images` of HUD_HOME at first. Raises `UsageError` for an unreadable or hostile one.
    """
    with ImageArchive.open(Path(path).expanduser()) as archive:
        store = settings.load().home / "images"
        folder = store / archive.digest
        if not folder.is_dir():
            store.mkdir(parents=True, exist_ok=True)
            unpacking = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=store))
            try:
                for layer in archive.layers():
                    unpack_layer(layer, unpacking)
                _prepare(unpacking)
                if not folder.is_dir():
                    unpacking.rename(folder)
            finally:
                if unpacking.exists():
                    shutil.rmtree(unpacking)
        return _configured(folder, archive.config.get("config") or {})


def _prepare(root: Path) -> None:
    """Make the mount points of a workspace, and pass the files to its user."""
    for name in _OWN_FOLDERS:
        place = root / name
        if place.is_symlink():
            raise UsageError(f"The image has a link at /{name}, where a workspace needs a folder.")
        place.mkdir(exist_ok=True)
    for name in _OWN_FILES:
        (root / name).unlink(missing_ok=True)
        (root / name).touch()
    root.chmod(0o755)
    if os.geteuid() == 0:
        for folder, folders, files in os.walk(root):
            for path in (folder, *(os.path.join(folder, name) for name in (*folders, *files))):
                os.chown(path, IMAGE_USER, IMAGE_USER, follow_symlinks=False)


def _configured(root: Path, config: dict[str, Any]) -> RootImage:
    declared = dict(pair.split("=", 1) for pair in config.get("Env") or ())
    user, home = _user(root, str(config.get("User") or ""))
    variables = {"PATH": SYSTEM_PATH, "HOME": home, "SHELL": "/bin/sh", **declared}
    return RootImage(root, config.get("WorkingDir") or "/", variables, user)


def _user(root: Path, name: str) -> tuple[int, str]:
    """Return the id and the home of an image's user."""
    name = name.partition(":")[0]
    accounts = root / "etc/passwd"
    if accounts.is_file() and not accounts.is_symlink():
        for line in accounts.read_text(errors="replace").splitlines():
            fields = line.split(":")
            if len(fields) >= 6 and (name or "root") in (fields[0], fields[2]):
                return int(fields[2]), fields[5] or "/"
    if name in _ROOT_NAMES:
        return 0, "/root"
    if name.isdecimal():
        return int(name), "/"
    raise UsageError(f"The image's user {name!r} is not in its /etc/passwd.")
