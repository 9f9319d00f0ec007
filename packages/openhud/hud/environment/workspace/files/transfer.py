"""File transfer into and out of a workspace, as archives that the agent's user unpacks and packs inside.

An incoming file can therefore be written only where the agent can write, and only files that the agent can read are sent
out.
"""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from hud.environment.workspace.sandbox.commands import execute, run_inside
from hud.environment.workspace.sandbox.sandbox import Sandbox
from hud.environment.workspace.sandbox.scripts import script
from hud.errors import EnvironmentFault, UsageError

COPY_SECONDS = 300.0
READ_BYTES = 64 << 20
"""Largest file to read, in bytes."""
_NAMES_KEPT = 2000
_UNPACK = ["/bin/tar", "--extract", "--file=-", "--no-same-owner", "--warning=no-timestamp"]


class Refused(EnvironmentFault):
    """A file could not be written: no space left, or a conflicting path."""


async def copy_in(sandbox: Sandbox, source: str, target: str) -> None:
    """Copy a folder's contents, or a file, to `target`: a folder, which is created, or the file's new name."""
    source, is_folder = _found(source)
    target = within(sandbox, target)
    if is_folder:
        await _unpack(sandbox, source, ".", target)
    else:
        await _unpack(
            sandbox, source, PurePosixPath(target).name, str(PurePosixPath(target).parent)
        )


async def write(sandbox: Sandbox, path: str, data: bytes) -> None:
    """Write a file and its folders; links made by the agent are replaced. Raises `Refused` on failure."""
    problem = await _feed(sandbox, data, "write", within(sandbox, path))
    if problem is not None:
        raise Refused(f"{path!r} could not be written in a workspace: {problem}.")


async def confine(sandbox: Sandbox, links: Sequence[str], paths: Sequence[str]) -> None:
    """Delete those of the links that lead out of `paths`, all absolute. Raises `Refused` on failure."""
    if not links:
        return
    problem = await _feed(sandbox, b"\0".join(map(os.fsencode, links)), "confine", *paths)
    if problem is not None:
        raise Refused(f"Links could not be deleted in a workspace: {problem}.")


async def _feed(sandbox: Sandbox, data: bytes, *arguments: str) -> str | None:
    """Run the script of files with `data` as its input; returns what went wrong, if anything did."""
    descriptor = os.memfd_create("hud")
    try:
        os.write(descriptor, data) if data else None
        os.lseek(descriptor, 0, os.SEEK_SET)
        errors = bytearray()
        status = await execute(
            sandbox,
            sandbox.plan.program(script("files", *arguments)),
            descriptor,
            lambda _: None,
            errors.extend,
            COPY_SECONDS,
        )
    finally:
        os.close(descriptor)
    return None if status == 0 else _said(errors)


async def empty(sandbox: Sandbox, path: str) -> None:
    """Make `path` an empty folder, whatever is there, and delete links that lead into it. Raises `Refused` on failure."""
    made = await run_inside(
        sandbox,
        sandbox.plan.program(
            script("files", "empty", within(sandbox, path), *sandbox.plan.writable)
        ),
        seconds=COPY_SECONDS,
        kept_bytes=_NAMES_KEPT,
    )
    if made.exit_code != 0:
        problem = made.stderr.strip().rstrip(".") or "it was stopped"
        raise Refused(f"{path!r} could not be emptied in a workspace: {problem}.")


async def read(sandbox: Sandbox, path: str) -> bytes:
    """Return the contents of a file; raises `FileNotFoundError` if it cannot be read, or its path has a link."""
    contents, errors = bytearray(), bytearray()
    status = await execute(
        sandbox,
        sandbox.plan.program(script("files", "read", within(sandbox, path), str(READ_BYTES + 1))),
        None,
        contents.extend,
        errors.extend,
        COPY_SECONDS,
    )
    if status != 0:
        raise FileNotFoundError(f"{path!r} cannot be read in the workspace: {_said(errors)}.")
    if len(contents) > READ_BYTES:
        raise FileNotFoundError(
            f"{path!r} has more than the {READ_BYTES >> 20} MB that can be read."
        )
    return bytes(contents)


def within(sandbox: Sandbox, path: str) -> str:
    """Return an absolute path in the sandbox; relative paths start at the workspace's folder."""
    return str(PurePosixPath(sandbox.plan.folder) / path)


def _found(source: str) -> tuple[str, bool]:
    """Return the path on this machine, and True for a folder."""
    path = os.path.expanduser(source)
    if not os.path.exists(path):
        raise UsageError(f"There is no {source!r} to copy into a workspace.")
    return path, os.path.isdir(path)


async def _unpack(sandbox: Sandbox, source: str, name: str, folder: str) -> None:
    made = await run_inside(
        sandbox,
        sandbox.plan.program(script("files", "folder", folder)),
        seconds=COPY_SECONDS,
        kept_bytes=_NAMES_KEPT,
    )
    if made.exit_code != 0:
        reason = made.stderr.strip().rstrip(".")
        raise Refused(f"{folder!r} could not be made in a workspace: {reason}.")
    reading, writing = os.pipe()
    errors = bytearray()
    packing = asyncio.ensure_future(asyncio.to_thread(_pack, source, name, writing))
    try:
        status = await execute(
            sandbox,
            sandbox.plan.program([*_UNPACK, "--directory", folder]),
            reading,
            lambda _: None,
            errors.extend,
            COPY_SECONDS,
        )
    finally:
        os.close(reading)  # The packing thread ends when the pipe's reader is closed.
        problem = await packing
    if problem is not None:
        raise EnvironmentFault(f"{source!r} cannot be copied into a workspace: {problem}.")
    if status != 0:
        raise Refused(
            f"{source!r} could not be copied into a workspace (of {sandbox.plan.limits.disk_mb:g} MB): "
            f"{_said(errors)}."
        )


def _pack(source: str, name: str, writing: int) -> str | None:
    """Write an archive to a pipe and close it; returns the source's error, if any."""
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
    """Filter of archive members: files, folders and links, writable by the agent; no devices, pipes, sockets."""
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        return None
    member.mode = (member.mode & 0o777) | (0o700 if member.isdir() else 0o600)
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _said(errors: bytearray) -> str:
    return errors[-_NAMES_KEPT:].decode("utf-8", "replace").strip().rstrip(".") or "it was stopped"
