"""A sandboxed Chromium, connected by a pipe: no port is open to other runs."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Literal

from hud.capabilities.browser.devtools import DevTools
from hud.environment.screens.screen_sandbox import HOME, Box, BoxedProgram
from hud.environment.workspace.sandbox.launch import by_itself
from hud.errors import EnvironmentFault

START_SECONDS = 60.0
_END_SECONDS = 2.0
Channel = Literal["chromium-headless-shell", "chromium"]
"""Browser program: the engine alone, or with a user interface, at three times the processor time."""
_CHROMIUM = ("/usr/lib/chromium/chromium", "chromium", "chromium-browser", "google-chrome")
_PROGRAMS: dict[Channel, tuple[str, ...]] = {
    "chromium-headless-shell": (
        "/usr/lib/chromium/chromium-headless-shell",
        "chromium-headless-shell",
        "chrome-headless-shell",
        *_CHROMIUM,
    ),
    "chromium": _CHROMIUM,
}
"""Names of the programs, in order of preference."""
# No background activity: no first-run pages, updates, reports or keyring.
_FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--user-data-dir=/tmp/profile",
    # bubblewrap is the sandbox; Chromium's own needs privileges that are missing in it.
    "--no-sandbox", "--test-type",
    # Fatal errors alone: the headless shell writes what pages write on their consoles.
    "--log-level=3",
    "--no-first-run", "--no-default-browser-check", "--no-pings", "--no-service-autorun",
    "--disable-background-networking", "--disable-breakpad", "--disable-client-side-phishing-detection",
    "--disable-component-update", "--disable-default-apps", "--disable-extensions", "--disable-sync",
    "--disable-domain-reliability", "--disable-field-trial-config", "--disable-hang-monitor",
    "--disable-popup-blocking", "--disable-prompt-on-repost", "--disable-search-engine-choice-screen",
    "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
    "--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication,"
    "CertificateTransparencyComponentUpdater,InterestFeedContentSuggestions,GlobalMediaControls",
    # Fewer processes to start; none is a boundary without Chromium's own sandbox.
    "--in-process-gpu", "--enable-features=NetworkServiceInProcess2",
    "--force-color-profile=srgb", "--hide-scrollbars=false", "--metrics-recording-only", "--mute-audio",
    "--password-store=basic", "--use-mock-keychain",
)  # fmt: skip


class Chromium:
    """A running browser."""

    def __init__(self, program: BoxedProgram, devtools: DevTools, wire: PipeWire) -> None:
        self.program, self.devtools = program, devtools
        self._wire = wire

    @classmethod
    async def start(
        cls,
        box: Box,
        channel: Channel,
        size: tuple[int, int],
        more: Sequence[str],
        user_agent: str | None,
    ) -> Chromium:
        """Start a browser with a fresh profile; raises `EnvironmentFault` if it does not start."""
        flags = [*_FLAGS, f"--window-size={size[0]},{size[1]}", *more]
        if user_agent is not None:
            flags.append(f"--user-agent={user_agent}")
        # The browser's protocol uses descriptors 3 and 4; they become the pipes of standard input and output.
        shell = 'exec 3<&0 4>&1 0</dev/null 1>&2; exec "$@"'
        program = await BoxedProgram.start(
            box, ["/bin/sh", "-c", shell, "chromium", _program(channel), *flags, "about:blank"]
        )
        wire = PipeWire(program)
        devtools = DevTools(wire)
        try:
            await devtools.call("Browser.getVersion", timeout=START_SECONDS)
            await devtools.call(
                "Browser.setDownloadBehavior",
                {"behavior": "allow", "downloadPath": f"{HOME}/Downloads"},
            )
        except BaseException as error:
            await devtools.close()
            await program.end()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise EnvironmentFault(
                f"The browser does not start: {await program.complaints() or error}."
            ) from error
        return cls(program, devtools, wire)

    @property
    def ended_by_itself(self) -> bool:
        """True if it was not killed from outside, but exited, ran out of memory, or answered with more than a message may hold."""
        ended = self._wire.overrun or by_itself(self.program.process.returncode)
        return ended or self.program.memory_ran_out()

    def fault(self) -> str | None:
        if not self.program.ended and not self.devtools.lost:
            return None
        return f"the browser has ended (status {self.program.process.returncode})"

    async def settle(self) -> None:
        """Wait until the status of a browser whose pipe is closed is known."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self.program.process.wait()

    async def close(self) -> None:
        await self.devtools.close()
        await self.program.end()


class PipeWire:
    """Messages of the DevTools protocol over a program's standard input and output, terminated by zero bytes."""

    def __init__(self, program: BoxedProgram) -> None:
        assert program.process.stdin is not None
        assert program.process.stdout is not None
        self._program = program
        self._input, self._output = program.process.stdin, program.process.stdout
        self.overrun = False
        """True after a message beyond the limit, such as a screenshot of a huge region: no later one can be read."""

    async def send(self, message: bytes, /) -> None:
        self._input.write(message + b"\0")
        await self._input.drain()

    async def messages(self) -> AsyncIterator[bytes | str]:
        while True:
            try:
                message = await self._output.readuntil(b"\0")
            except asyncio.LimitOverrunError:
                self.overrun = True
                return
            except (asyncio.IncompleteReadError, OSError):
                return
            yield message[:-1]

    async def close(self) -> None:
        self._input.close()

    def why_closed(self) -> str | None:
        status = self._program.process.returncode
        return "it has ended" if status is None else f"it has ended with status {status}"


def _program(channel: Channel) -> str:
    for name in _PROGRAMS[channel]:
        path = shutil.which(name) if "/" not in name else name
        if path is not None and os.access(path, os.X_OK):
            return path
    raise EnvironmentFault(
        "There is no Chromium on this machine; scripts/setup-worlds installs it (Debian packages 'chromium' and "
        "'chromium-headless-shell')."
    )
