"""`Desktop`: a display, a window manager and programs for each run, as a part of an environment.

Agents connect over VNC. The programs run in the sandbox of a workspace, separate from the display server.
"""

from __future__ import annotations

import asyncio
import base64
import os
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud.capabilities import Capability
from hud.capabilities.desktop.rfb import RFBClient
from hud.environment.part import OpenPart, Part
from hud.environment.screens.browser import check_size, image_block
from hud.environment.screens.display import SOCKETS, Display
from hud.environment.screens.run_folders import run_folder
from hud.environment.workspace import Mount, WorkspaceLimits
from hud.environment.workspace.files import transfer
from hud.environment.workspace.sandbox.bubblewrap import required_program
from hud.environment.workspace.sandbox.mounts import HOME
from hud.environment.workspace.sandbox.sandbox import Process
from hud.environment.workspace.workspace import (
    COMMAND_SECONDS,
    NotLeftThere,
    OpenWorkspace,
    Workspace,
)
from hud.errors import AgentFault, EnvironmentFault, RolloutError
from hud.graders.command import CommandOutcome

if TYPE_CHECKING:
    from hud.environment.run import EnvironmentRun

Program = str | Sequence[str]
"""A shell command line, or a list of arguments."""
_FOLDER = "/workspace"
# Wait until the window manager is ready: a window opened while it starts would be lost.
_MANAGER = ("openbox", "--sm-disable", "--startup", "echo up")
# Entries of /etc that graphical programs read, beyond those of a workspace.
_CONFIGURATION = ("X11", "xdg", "gtk-2.0", "gtk-3.0", "chromium", "chromium.d")
_MANAGER_SECONDS = 60.0
_SHOWN_SECONDS, _SHOWN_STILL = 60.0, 0.5
_NOT_FOUND = (126, 127)
"""Exit statuses of a shell for a missing program."""


class Desktop(Part["OpenDesktop"]):
    """A display with a window manager for each run; `env.desktop(...)` adds one.

    `programs` are started on it: each a command line for the shell, or a list of words. They run in a sandbox, whose
    `root`, `mounts`, `network`, `allowed_hosts`, `env` and `limits` are those of a `Workspace`. `size` is in pixels.
    """

    confines_shells = True

    def __init__(
        self,
        name: str = "desktop",
        *,
        programs: Sequence[Program] = (),
        size: tuple[int, int] = (1024, 768),
        root: str | Path | None = None,
        mounts: Sequence[Mount] = (),
        network: bool = False,
        allowed_hosts: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        limits: WorkspaceLimits | None = None,
    ) -> None:
        check_size("size", size)
        self.name = name
        self.programs = tuple(programs)
        self.size = size
        self._mounts = [*_configuration(), *mounts]
        self._variables = dict(env or {})
        self._of_workspaces: dict[str, Any] = {
            "root": root,
            "network": network,
            "allowed_hosts": allowed_hosts,
            "limits": limits,
        }
        self._workspace()  # Validates the arguments now.

    @asynccontextmanager
    async def open(self, run: EnvironmentRun) -> AsyncIterator[OpenDesktop]:
        required_program("openbox", "openbox")
        async with AsyncExitStack() as stack:
            folder = await stack.enter_async_context(run_folder("desktop", reached_by_others=True))
            display = await Display.start(folder, self.size)
            stack.push_async_callback(display.close)
            workspace = self._workspace(
                [Mount(display.sockets, SOCKETS)], {"DISPLAY": f":{display.number}"}
            )
            inside = await stack.enter_async_context(workspace.open(run))
            await transfer.write(inside.sandbox, f"{HOME}/.Xauthority", display.key)
            opened = OpenDesktop(run.name, self, display, inside)
            viewer = await RFBClient.connect(opened.capability)
            stack.push_async_callback(viewer.close)
            opened.viewer = viewer
            await opened.begin(self.programs)
            yield opened

    def _workspace(
        self, mounts: Sequence[Mount] = (), variables: Mapping[str, str] | None = None
    ) -> Workspace:
        """Return the workspace of the desktop's programs."""
        return Workspace(
            name=self.name,
            guest_path=_FOLDER,
            mounts=[*self._mounts, *mounts],
            env={**self._variables, **(variables or {})},
            **self._of_workspaces,
        )

    async def start(self, program: Program) -> None:
        """Start another program on this run's desktop, without waiting for it."""
        await self.opened.start(program)

    async def screenshot(self) -> bytes:
        """Return a PNG screenshot."""
        opened = self.opened
        try:
            return await opened.viewer.screenshot()
        except RolloutError:
            await opened.display.settle()
            opened.check()
            raise

    async def bash(self, command: str, *, timeout: float = COMMAND_SECONDS) -> CommandOutcome:
        """Run a command in the sandbox of this run's programs, with their files but its own variables."""
        display = {
            "DISPLAY": f":{self.opened.display.number}",
            "XAUTHORITY": f"{HOME}/.Xauthority",
        }
        return await self.opened.inside.bash(
            command, cwd=None, timeout=timeout, alone=False, env=display
        )

    async def end_all(self) -> None:
        """Kill all programs on this run's desktop, so that its files no longer change; the screen becomes empty."""
        await self.opened.inside.end_all()

    async def read(self, path: str) -> bytes:
        """Return the contents of a file of this run's desktop; relative paths start at the programs' working directory.

        Raises `NotLeftThere` for a missing file: a failure of the agent, with reward 0 if uncaught.
        """
        inside = self.opened.inside
        try:
            return await transfer.read(inside.sandbox, path)
        except FileNotFoundError as error:
            inside.check()
            raise NotLeftThere(str(error)) from error

    async def write(self, path: str, data: str | bytes) -> None:
        """Write a file of this run's desktop and create its folders."""
        content = data.encode() if isinstance(data, str) else data
        await transfer.write(self.opened.inside.sandbox, path, content)


class OpenDesktop(OpenPart):
    """A run's desktop."""

    capability: Capability
    viewer: RFBClient
    """OpenHUD's own VNC client."""

    def __init__(
        self, run_name: str, part: Desktop, display: Display, inside: OpenWorkspace
    ) -> None:
        self.display, self.inside = display, inside
        self._run_name, self._part = run_name, part
        self._shown: bytes | None = None
        self._task_began = False
        width, height = part.size
        self.capability = Capability.rfb(
            part.name,
            url=f"rfb://127.0.0.1:{display.port}",
            display=f":{display.number}",
            password=display.password,
            width=width,
            height=height,
        )

    async def begin(self, programs: Sequence[Program]) -> None:
        """Start the programs and wait, with a time-out, until their windows are shown and no longer change.

        Raises `EnvironmentFault` for a missing program.
        """
        await self._manage()
        started = [await self.start(program) for program in programs]
        clock = asyncio.get_running_loop().time
        until = clock() + _SHOWN_SECONDS
        while any(not process.ended.done() for process in started) and clock() < until:
            if await self.viewer.stand_still(_SHOWN_STILL, until - clock()):
                break
        for program, process in zip(programs, started, strict=True):
            if process.ended.done() and process.ended.result() in _NOT_FOUND:
                raise EnvironmentFault(
                    f"Environment {self._run_name!r}: {self._part.name!r}: {program!r} cannot be started; is it "
                    "installed on this machine?"
                )

    async def start(self, program: Program, output: int | None = None) -> Process:
        """Start a program in the sandbox, output to a descriptor or /dev/null. Raises `AgentFault` if it fails."""
        line = program if isinstance(program, str) else f"exec {shlex.join(program)}"
        nothing = os.open(os.devnull, os.O_RDWR)
        descriptors = [nothing, nothing if output is None else output, nothing]
        try:
            return await self.inside.sandbox.spawn(["/bin/sh", "-c", line], descriptors)
        except OSError as error:
            self.inside.check()
            raise AgentFault(
                f"The desktop {self._part.name!r} starts nothing any more: {error}."
            ) from error
        finally:
            os.close(nothing)

    async def _manage(self) -> None:
        """Start the window manager, and wait until it is ready."""
        ours, its = os.pipe()
        ready = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        listening, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(ready), os.fdopen(ours, "rb")
        )
        try:
            with os.fdopen(its, "wb") as output:
                await self.start(_MANAGER, output.fileno())
            async with asyncio.timeout(_MANAGER_SECONDS):
                up = await ready.readline()
        except TimeoutError:
            up = b""
        finally:
            listening.close()
        if not up:
            raise EnvironmentFault(
                f"Environment {self._run_name!r}: {self._part.name!r}: its window manager does not start."
            )

    async def observe(self) -> dict[str, Any]:
        """Return a screenshot if it differs from the last one, and file changes."""
        seen = await self.inside.observe()
        try:
            shot = await self.viewer.screenshot()
        except RolloutError:
            await self.display.settle()
            return seen  # The display exited; see `fault`.
        if shot != self._shown:
            self._shown = shot
            seen["screenshot"] = image_block(base64.b64encode(shot).decode())
        return seen

    async def begin_task(self) -> None:
        self._task_began = True

    def broken_by_agent(self) -> bool:
        if self.display.fault() is not None:
            # Its programs can disconnect the VNC server, or exhaust the X server's memory.
            return self._task_began and self.display.ended_by_itself
        return self.inside.fault() is not None and self.inside.broken_by_agent()

    def fault(self) -> str | None:
        # The VNC connection ends before the process's exit is known.
        problem = self.display.fault() or self.viewer.fault()
        if problem is None:
            return self.inside.fault()
        return f"Environment {self._run_name!r}: {self._part.name!r}: {problem}."


def _configuration() -> list[Mount]:
    paths = [f"/etc/{name}" for name in _CONFIGURATION]
    return [Mount(path, path) for path in paths if os.path.isdir(path)]
