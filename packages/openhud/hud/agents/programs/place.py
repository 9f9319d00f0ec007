"""Places in which a program plays: a run's workspace, over SSH, or a fresh folder of this machine.

A place has a working directory, a home folder, files, and a way in which the program reaches addresses of this machine.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit, urlunsplit

from hud.capabilities.capability import SSH
from hud.errors import EnvironmentFault
from hud.graders.command import clean_environment
from hud.processes.child import Child

if TYPE_CHECKING:
    from hud.agents.agent import RunView
    from hud.capabilities.shell.ssh import SSHClient

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NOT_FOUND = 127
_KEPT_BYTES = 1 << 20
"""Bytes of standard output that are kept: the last ones."""


@dataclass(frozen=True)
class ProgramEnd:
    """End of a program."""

    exit_code: int
    """Exit status; below 0: the signal that ended it."""
    stdout: str
    stderr: str


class Place(ABC):
    """Working directory, home folder and network of one run's program."""

    kind: str
    home: str
    work: str

    @abstractmethod
    async def write(self, path: str, text: str) -> None:
        """Write a file and create its folders."""

    @abstractmethod
    async def read(self, path: str) -> str | None:
        """Return the text of a file; None if there is none."""

    @abstractmethod
    async def reach(self, url: str) -> str:
        """Return the address at which the program reaches `url`, an address of this machine."""

    @abstractmethod
    async def run(self, arguments: Sequence[str], variables: Mapping[str, str]) -> ProgramEnd:
        """Run a program to its end. Cancelling kills it."""


class WorkspacePlace(Place):
    """The run's workspace."""

    kind = "workspace"

    def __init__(self, client: SSHClient, home: str, work: str) -> None:
        self.client, self.home, self.work = client, home, work

    @classmethod
    async def open(cls, client: SSHClient) -> WorkspacePlace:
        """Return the place of a connected client. Raises `EnvironmentFault` if its user has no home folder."""
        looked = await client.run('printf "%s\\n%s" "$HOME" "$PWD"')
        home, _, work = looked.stdout.partition("\n")
        if looked.exit_status != 0 or not home:
            raise EnvironmentFault(f"The workspace has no home folder: {looked.stderr.strip()}.")
        return cls(client, home, work)

    async def write(self, path: str, text: str) -> None:
        await self.client.write(path, text)

    async def read(self, path: str) -> str | None:
        try:
            return (await self.client.read(path)).decode("utf-8", "replace")
        except OSError:
            return None

    async def reach(self, url: str) -> str:
        parts = urlsplit(url)
        assert parts.hostname is not None
        port = parts.port or (443 if parts.scheme == "https" else 80)
        exposed = await self.client.expose(parts.hostname, port)
        return urlunsplit(parts._replace(netloc=f"127.0.0.1:{exposed}"))

    async def run(self, arguments: Sequence[str], variables: Mapping[str, str]) -> ProgramEnd:
        named = dict(variables)
        folders = named.pop("PATH", "")
        words = [f"{name}={shlex.quote(value)}" for name, value in named.items()]
        if folders:
            words.append(f'PATH={shlex.quote(folders)}:"$PATH"')
        program, *further = arguments
        # The machine's program is mounted at its own path; where it is not, the workspace may have its own.
        own = shlex.quote(Path(program).name)
        script = (
            f'P={shlex.quote(program)}\n[ -x "$P" ] || P={own}\n'
            f'exec env {" ".join(words)} "$P" {" ".join(map(shlex.quote, further))}\n'
        )
        # In a file: a command over SSH may not be as long as a prompt.
        path = f"{self.home}/.hud-run/start.sh"
        await self.client.write(path, script)
        done = await self.client.run(f"exec /bin/bash {shlex.quote(path)}")
        return ProgramEnd(
            _NOT_FOUND if done.exit_status is None else done.exit_status, done.stdout, done.stderr
        )


class LocalPlace(Place):
    """A fresh folder of this machine, with a clean environment of variables."""

    kind = "process"

    def __init__(self, folder: Path) -> None:
        self.home, self.work = str(folder / "home"), str(folder / "work")
        for path in (self.home, self.work):
            os.mkdir(path)

    async def write(self, path: str, text: str) -> None:
        _write(Path(path), text)

    async def read(self, path: str) -> str | None:
        return _text(Path(path))

    async def reach(self, url: str) -> str:
        return url

    async def run(self, arguments: Sequence[str], variables: Mapping[str, str]) -> ProgramEnd:
        own = {"HOME": self.home, "TMPDIR": self.home, "PATH": SEARCH_PATH}
        folders = variables.get("PATH", "")
        if folders:
            own["PATH"] = f"{folders}:{SEARCH_PATH}"
        locale = {name: value for name, value in clean_environment().items() if name == "LANG"}
        variables = {**locale, **variables, **own}
        try:
            child = Child(
                list(arguments),
                cwd=self.work,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            return ProgramEnd(_NOT_FOUND, "", f"{arguments[0]}: {error.strerror or error}")
        async with child:
            printed = bytearray()

            def keep(data: bytes) -> None:
                printed.extend(data)
                del printed[:-_KEPT_BYTES]

            stdout = await child.printed(keep)
            stderr = await child.errors()
            try:
                exit_code = await child.ended()
            finally:
                child.kill()
            await stdout.text()
            return ProgramEnd(exit_code, printed.decode("utf-8", "replace"), await stderr.text())


@asynccontextmanager
async def open_place(run: RunView) -> AsyncIterator[Place]:
    """Open the run's workspace, if its environment has one, else a fresh folder of this machine."""
    if any(capability.protocol == SSH for capability in run.capabilities):
        yield await WorkspacePlace.open(cast("SSHClient", await run.open(SSH)))
        return
    folder = Path(tempfile.mkdtemp(prefix="hud-program-"))
    try:
        yield LocalPlace(folder)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, True)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def _text(file: Path) -> str | None:
    with suppress(OSError):
        return file.read_text("utf-8", "replace")
    return None
