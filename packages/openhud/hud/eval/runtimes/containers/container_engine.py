"""`ContainerEngine`: docker or podman, by its command line."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from hud.errors import InfrastructureFault, UsageError

_PROGRAMS = ("docker", "podman")
_ANSWER_SECONDS = 20.0
_PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
_PASSED_PREFIXES = ("DOCKER_", "CONTAINER")
_REFUSED_PREFIXES = (*_PASSED_PREFIXES, "BUILD", "LD_", "PODMAN_", "REGISTR", "STORAGE_", "_CONTAINER")  # fmt: skip


@dataclass(frozen=True)
class ContainerEngine:
    """A program that runs containers on this machine."""

    program: str
    """`docker` or `podman`."""

    async def call(self, *arguments: str, variables: Mapping[str, str] | None = None) -> str:
        """Run a short command and return what it prints; raises `InfrastructureFault` with its last line."""
        process = await self.start(
            *arguments, variables=variables, stdin=asyncio.subprocess.DEVNULL, merged=True
        )
        try:
            printed, _ = await process.communicate()
        except BaseException:
            if process.returncode is None:
                process.kill()
            raise
        return self._checked(arguments, process.returncode, printed)

    async def start(
        self,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        stdin: int = asyncio.subprocess.PIPE,
        merged: bool = False,
    ) -> asyncio.subprocess.Process:
        """Start a command on pipes; `merged`: standard error is part of its output. Raises `InfrastructureFault`."""
        try:
            return await asyncio.create_subprocess_exec(
                self.program,
                *arguments,
                env=self.variables(variables or {}),
                # Where a container's memory runs out, podman's monitor writes a file into its current folder.
                cwd=tempfile.gettempdir(),
                stdin=stdin,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT if merged else asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise InfrastructureFault(f"{self.program} cannot be run: {error.strerror}.") from error

    def check(self) -> None:
        """Raise `InfrastructureFault` with the reason if it does not answer; blocks until then."""
        command = [self.program, "info"]
        try:
            answer = subprocess.run(
                command,
                env=self.variables({}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_ANSWER_SECONDS,
                check=False,
            )
        except OSError as error:
            raise InfrastructureFault(f"{self.program} cannot be run: {error.strerror}.") from error
        except subprocess.TimeoutExpired:
            raise InfrastructureFault(
                f"{self.program} did not answer within {_ANSWER_SECONDS:g} s."
            ) from None
        self._checked(command[1:], answer.returncode, answer.stdout)

    def variables(self, declared: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a command: those that the engine needs, none of ours, and `declared`.

        Raises `UsageError` where the two clash: an environment's author must not choose the daemon, or the program.
        """
        for name in sorted(declared):
            if name in _PASSED or name.startswith(_REFUSED_PREFIXES):
                raise UsageError(
                    f"The variable {name} is {self.program}'s own; give it another name."
                )
        return {**_own_variables(), **declared}

    def _checked(self, arguments: tuple[str, ...] | list[str], status: int | None, printed: bytes) -> str:  # fmt: skip
        if status != 0:
            raise InfrastructureFault(
                f"{self.program} {arguments[0]}: {last_line(printed, status)}"
            )
        return printed.decode("utf-8", "replace").strip()


def last_line(printed: bytes, status: int | None) -> str:
    """Return the last line that a failed command printed, else its status."""
    lines = printed.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"status {status}"


def _own_variables() -> dict[str, str]:
    """Return the variables of this process that an engine needs."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name.startswith(_PASSED_PREFIXES)
    }


def container_engine() -> ContainerEngine:
    """Return docker, or podman where docker is missing or does not answer; blocks for the first answer.

    Raises `InfrastructureFault` with the reasons of both.
    """
    programs = [shutil.which(program) for program in _PROGRAMS]
    return _answering(*programs, *_own_variables().items())


def has_engine() -> bool:
    """Return whether docker or podman answers; blocks for the first answer."""
    try:
        container_engine()
    except InfrastructureFault:
        return False
    return True


async def find_container_engine() -> ContainerEngine:
    """Return `container_engine()` without blocking the event loop."""
    return await asyncio.to_thread(container_engine)


@lru_cache(maxsize=8)
def _answering(*installation: str | tuple[str, str] | None) -> ContainerEngine:
    """Return the first engine that answers, kept for an installation."""
    del installation
    reasons = []
    for program in _PROGRAMS:
        engine = ContainerEngine(program)
        try:
            engine.check()
        except InfrastructureFault as fault:
            reasons.append(str(fault).rstrip("."))
        else:
            return engine
    raise InfrastructureFault(f"No container engine answers: {'; '.join(reasons)}.")
