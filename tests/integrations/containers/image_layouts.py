"""Images made of this machine's shell and a few programs, and workspaces in them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile

import pytest

from hud import Environment
from hud.capabilities.shell.ssh import SSHClient
from hud.environment import WorkspaceLimits
from hud.environment.current_run import entered

SMALL = WorkspaceLimits(memory_mb=256, processes=64, disk_mb=32, scratch_mb=8)
PROGRAMS = (
    "/bin/sh",
    "/bin/cat",
    "/bin/ls",
    "/usr/bin/id",
    "/bin/rm",
    "/bin/touch",
    "/bin/grep",
    "/bin/mkdir",
)
needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)


def member(name, content=None, **fields):
    """A member of a layer: a file with `content`, else a folder."""
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
    info.mode = 0o755
    info.size = len(content or b"")
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content or b""


def link(name, target, kind=tarfile.SYMTYPE):
    return member(name, b"", type=kind, linkname=target)


def packed(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def programs(names=PROGRAMS):
    """This machine's shell and a few programs, with their libraries, as members."""
    paths = set(names)
    for program in names:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        paths.update(re.findall(r"(/\S+) \(0x", listed))
    return [member(path[1:], open(path, "rb").read()) for path in sorted(paths)]


def write_layout(folder, layers, config=None):
    """Write an image as a folder in OCI layout; returns the folder."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content):
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    contents = [packed(members) for members in layers]
    described = [blob(content) for content in contents]
    ids = [layer["digest"] for layer in described]
    document = {"config": config or {}, "rootfs": {"type": "layers", "diff_ids": ids}}
    manifest = {"config": blob(json.dumps(document).encode()), "layers": described}
    index = {"manifests": [blob(json.dumps(manifest).encode())]}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@contextlib.asynccontextmanager
async def workspace(root_image, **options):
    env = Environment("place")
    shell = env.workspace(image=root_image, **{"limits": SMALL, **options})
    async with env.run() as run:
        with entered(run):
            client = await SSHClient.connect(shell.opened.capability)
            try:
                yield shell, client
            finally:
                await client.close()
