"""Artifacts: files of an agent's workspace that are copied into its verifier's, as an archive that is checked in between."""

from __future__ import annotations

import asyncio
import os
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from hud.environment.workspace.sandbox.limits import MB
from hud.environment.workspace.sandbox.sandbox import Process, Sandbox
from hud.errors import AgentFault, UsageError

_SECONDS = 300.0
_MOST_FILES = 100_000
_PACK = ["/bin/tar", "--create", "--file=-", "--hard-dereference", "--directory=/"]
_UNPACK = ["/bin/tar", "--extract", "--file=-", "--no-same-owner", "--warning=no-timestamp", "--directory=/"]  # fmt: skip


@dataclass(frozen=True)
class Artifact:
    """A file or folder of the agent's workspace."""

    path: str
    exclude: tuple[str, ...] = ()
    """Patterns of files that are left out."""


def read_artifacts(declared: Any) -> list[Artifact]:
    """Return the artifacts of a `task.toml`. Raises `UsageError` for one without an absolute path, or of another service."""
    artifacts = []
    for part in declared or ():
        settings = part if isinstance(part, Mapping) else {"source": part}
        path = PurePosixPath(str(settings.get("source", "")))
        if (
            not path.is_absolute()
            or ".." in path.parts
            or settings.get("service", "main") != "main"
        ):
            raise UsageError(f": the artifact {part!r} is no absolute path of the main service")
        artifacts.append(Artifact(str(path), tuple(map(str, settings.get("exclude") or ()))))
    return artifacts


async def copy_artifact(artifact: Artifact, agent: Sandbox, verifier: Sandbox) -> list[str]:
    """Copy an artifact to the same path, and return the paths of its links; a missing one is left out.

    Raises `AgentFault` for one that does not fit.
    """
    prefix = artifact.path.lstrip("/")
    excludes = [f"--exclude={pattern}" for pattern in artifact.exclude]
    pack = agent.plan.program([*_PACK, *excludes, "--", prefix])
    packed, packing = os.pipe()
    unpacking, checked = os.pipe()
    try:
        packer = await _started(agent, pack, writing=packing)
        unpacker = await _started(verifier, verifier.plan.program(_UNPACK), reading=unpacking)
    finally:
        os.close(packing)
        os.close(unpacking)
    most_bytes = int(verifier.plan.limits.disk_mb * MB)
    links: set[PurePosixPath] = set()
    copying = asyncio.to_thread(_copy_checked, packed, checked, prefix, most_bytes, links)
    try:
        async with asyncio.timeout(_SECONDS):
            problem = await copying
            status = await unpacker.wait()
    except TimeoutError:
        problem, status = f"not within {_SECONDS:g} s", 0
    finally:
        for process in (packer, unpacker):
            process.signal(9)
    if problem is not None or status != 0:
        raise AgentFault(f"The artifact {artifact.path} could not be copied to the verifier: {problem or 'it does not fit'}.")  # fmt: skip
    return [f"/{link}" for link in links]


async def _started(
    sandbox: Sandbox, argv: list[str], *, reading: int | None = None, writing: int | None = None
) -> Process:
    """Start a program on descriptors, or on none."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        descriptors = [nothing if descriptor is None else descriptor for descriptor in (reading, writing)]  # fmt: skip
        return await sandbox.spawn(argv, [*descriptors, nothing], group_ends=True)
    finally:
        os.close(nothing)


def _copy_checked(
    reading: int, writing: int, prefix: str, most_bytes: int, links: set[PurePosixPath]
) -> str | None:
    """Copy the members of an archive that are files, folders and links below `prefix`; returns why it stopped, if it did.

    The paths of links are added to `links`.

    The archive is the agent's: it may have any members, and those of a real folder lead through none of its links.
    """
    with (
        suppress(BrokenPipeError),  # The verifier's end of it failed, and says so.
        os.fdopen(writing, "wb") as target,
        os.fdopen(reading, "rb") as source,
        tarfile.open(fileobj=target, mode="w|") as checked,
    ):
        try:
            with tarfile.open(fileobj=source, mode="r|") as archive:
                return _copy_members(archive, checked, prefix, most_bytes, links)
        except (tarfile.TarError, OverflowError, RecursionError, ValueError):
            return "its archive is malformed"
    return None


def _copy_members(
    archive: tarfile.TarFile,
    checked: tarfile.TarFile,
    prefix: str,
    most_bytes: int,
    links: set[PurePosixPath],
) -> str | None:
    size = 0
    for number, member in enumerate(archive):
        path = PurePosixPath(member.name)
        size += member.size
        if size > most_bytes or number >= _MOST_FILES:
            return "it does not fit"
        if not path.is_relative_to(prefix) or ".." in path.parts or links & {path, *path.parents}:
            return "its archive is malformed"
        if member.issym():
            links.add(path)
        elif not (member.isreg() or member.isdir()):
            continue
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        # Folders that cannot be entered would keep their links from being examined.
        member.mode = (member.mode & 0o777) | (0o700 if member.isdir() else 0o600)
        checked.addfile(member, archive.extractfile(member) if member.isreg() else None)
    return None
