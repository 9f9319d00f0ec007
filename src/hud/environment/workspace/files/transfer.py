"""Files into a workspace, and out of it: always packed, and unpacked by the agent's own user inside.

So a file that comes in can land nowhere else, and one that goes out is nothing but what the agent can read.
"""

from __future__ import annotations

import asyncio
import os
import tarfile
from contextlib import suppress
from pathlib import PurePosixPath

from hud.environment.workspace.sandbox.commands import execute, run_inside
from hud.environment.workspace.sandbox.mounts import script
from hud.environment.workspace.sandbox.sandbox import Sandbox
from hud.errors import EnvironmentFault, UsageError

COPY_SECONDS = 300.0
READ_BYTES = 64 << 20
"""Largest part of one file that is read, in bytes."""
_NAMES_KEPT = 2000
_UNPACK = ["/bin/tar", "--extract", "--file=-", "--no-same-owner", "--warning=no-timestamp"]


class Refused(EnvironmentFault):
    """The workspace did not take a file: for want of room, or for what is there."""


async def copy_in(sandbox: Sandbox, source: str, target: str) -> None:
    """Copy what a folder holds, or one file, to `target`: a folder, which is made, or the file's new name."""
    source, is_folder = _found(source)
    target = within(sandbox, target)
    if is_folder:
        await _unpack(sandbox, source, ".", target)
    else:
        await _unpack(
            sandbox, source, PurePosixPath(target).name, str(PurePosixPath(target).parent)
        )


async def write(sandbox: Sandbox, path: str, data: bytes) -> None:
    """Write a file and its folders; links that the agent made are replaced. Raises `Refused` where it fails."""
    descriptor = os.memfd_create("hud")
    try:
        os.write(descriptor, data) if data else None
        os.lseek(descriptor, 0, os.SEEK_SET)
        errors = bytearray()
        status = await execute(
            sandbox,
            script("files", "write", within(sandbox, path)),
            descriptor,
            lambda _: None,
            errors.extend,
            COPY_SECONDS,
        )
    finally:
        os.close(descriptor)
    if status != 0:
        raise Refused(f"{path!r} could not be written in a workspace: {_said(errors)}.")


async def read(sandbox: Sandbox, path: str) -> bytes:
    """Return what a file holds; raises `FileNotFoundError` where it cannot be read, or is reached by a link."""
    found, errors = bytearray(), bytearray()
    status = await execute(
        sandbox,
        script("files", "read", within(sandbox, path), str(READ_BYTES + 1)),
        None,
        found.extend,
        errors.extend,
        COPY_SECONDS,
    )
    if status != 0:
        raise FileNotFoundError(f"{path!r} cannot be read in the workspace: {_said(errors)}.")
    if len(found) > READ_BYTES:
        raise FileNotFoundError(
            f"{path!r} has more than the {READ_BYTES >> 20} MB that can be read."
        )
    return bytes(found)


def within(sandbox: Sandbox, path: str) -> str:
    """Return a path inside, absolute; a relative one is one of the workspace's folder."""
    return str(PurePosixPath(sandbox.plan.folder) / path)


def _found(source: str) -> tuple[str, bool]:
    """Return where it is on this machine, and whether it is a folder."""
    path = os.path.expanduser(source)
    if not os.path.exists(path):
        raise UsageError(f"There is no {source!r} to copy into a workspace.")
    return path, os.path.isdir(path)


async def _unpack(sandbox: Sandbox, source: str, name: str, folder: str) -> None:
    made = await run_inside(
        sandbox, script("files", "folder", folder), seconds=COPY_SECONDS, kept_bytes=_NAMES_KEPT
    )
    if made.exit_code != 0:
        said = made.stderr.strip().rstrip(".")
        raise Refused(f"{folder!r} could not be made in a workspace: {said}.")
    reading, writing = os.pipe()
    errors = bytearray()
    packing = asyncio.ensure_future(asyncio.to_thread(_pack, source, name, writing))
    try:
        status = await execute(
            sandbox,
            [*_UNPACK, "--directory", folder],
            reading,
            lambda _: None,
            errors.extend,
            COPY_SECONDS,
        )
    finally:
        os.close(reading)  # The packing thread ends where nobody reads any more.
        problem = await packing
    if problem is not None:
        raise EnvironmentFault(f"{source!r} cannot be copied into a workspace: {problem}.")
    if status != 0:
        raise Refused(
            f"{source!r} could not be copied into a workspace (of {sandbox.plan.limits.disk_mb:g} MB): "
            f"{_said(errors)}."
        )


def _pack(source: str, name: str, writing: int) -> str | None:
    """Write an archive to a pipe, which is closed; returns what is wrong with the source."""
    with os.fdopen(writing, "wb", 0) as pipe, suppress(BrokenPipeError):
        try:
            with tarfile.open(fileobj=pipe, mode="w|", format=tarfile.GNU_FORMAT) as archive:
                archive.add(source, name, filter=_as_the_agents)
        except PermissionError as error:
            return f"{error.filename!r} cannot be read ({error.strerror})"
        except FileNotFoundError as error:
            return f"{error.filename!r} went away meanwhile"
    return None


def _as_the_agents(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files, folders and links, for the agent to read and write; devices, pipes and sockets stay behind."""
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.mode = (member.mode & 0o777) | (0o700 if member.isdir() else 0o600)
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _said(errors: bytearray) -> str:
    return errors[-_NAMES_KEPT:].decode("utf-8", "replace").strip().rstrip(".") or "it was stopped"
