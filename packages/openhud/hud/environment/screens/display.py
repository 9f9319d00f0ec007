"""`Display`: an X server with an in-memory framebuffer (Xvfb), and a VNC server for it, in their own sandbox.

The desktop's programs run in another sandbox with the X server's socket and cookie; they can neither kill the servers nor
read the password.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import string
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hud.environment.screens.screen_sandbox import Box, BoxedProgram
from hud.environment.workspace.sandbox.bubblewrap import required_program
from hud.environment.workspace.sandbox.launch import by_itself
from hud.errors import EnvironmentFault

SOCKETS = "/tmp/.X11-unix"
"""Folder of X servers' sockets."""
START_SECONDS = 60.0
_TRIES = 5
_FIRST_NUMBER, _NUMBERS = 100, 50_000
_PASSWORD_LETTERS, _PASSWORD_LENGTH = string.ascii_letters + string.digits, 8
"""Length of a VNC password: the protocol's maximum."""
_ANY_HOST = 0xFFFF
_MEMORY_BYTES = 1 << 30
"""Memory of both servers: programs can ask the X server for pictures of any number and size."""
_END_SECONDS = 2.0
# X clients connect by the socket only, and x11vnc accepts no remote control. Moving windows are sent as pixels, without
# x11vnc's shortcuts. No shared memory: programs have their own IPC namespace, and GTK aborts if the server cannot attach
# their segments.
# The exit status is that of the server that ended first; the X server ends by SIGTERM with 0 or 143.
_SCRIPT = """
Xvfb ":$1" -screen 0 "$2x24" -auth "$HOME/.Xauthority" -nolisten tcp -nolisten local -noreset -dpi 96 \\
    -s 0 -dpms -br -extension MIT-SHM </dev/null >/dev/null &
server=$!
until [ -S "/tmp/.X11-unix/X$1" ]; do kill -0 $server || exit 1; sleep 0.05; done
x11vnc -display ":$1" -rfbport "$3" -localhost -no6 -noipv6 -passwdfile "$HOME/password" -forever -shared \\
    -quiet -norc -noremote -novncconnect -nocmds -nosel -noxrecord -nowireframe -nowirecopyrect -noscrollcopyrect \\
    -nodpms -noshm -wait 15 -defer 10 </dev/null &
wait $!
status=$?
kill $server
wait $server
ended=$?
case $ended in 0 | 143) exit $status ;; *) exit $ended ;; esac
"""


@dataclass(frozen=True)
class Display:
    """A running display."""

    number: int
    password: str
    port: int
    """Port of the VNC server on this machine's loopback."""
    sockets: Path
    """The folder of the X server's socket, mounted at `SOCKETS` for the display's programs."""
    key: bytes
    """Contents of `.Xauthority` for the display's programs."""
    program: BoxedProgram

    @classmethod
    async def start(cls, folder: Path, size: tuple[int, int]) -> Display:
        """Start a display; raises `EnvironmentFault` if it does not start."""
        for needed, package in (("Xvfb", "xvfb"), ("x11vnc", "x11vnc")):
            required_program(needed, package)
        number = _FIRST_NUMBER + secrets.randbelow(_NUMBERS)
        password = "".join(secrets.choice(_PASSWORD_LETTERS) for _ in range(_PASSWORD_LENGTH))
        key = _authority(secrets.token_bytes(16))
        sockets = _furnish(folder, {".Xauthority": key, "password": password.encode()})
        box = Box(
            folder,
            memory_tmp=True,
            memory_bytes=_MEMORY_BYTES,
            environment=(("DISPLAY", f":{number}"),),
            shared=((sockets, SOCKETS),),
        )
        for _ in range(_TRIES):  # Another process may take the port in the meantime.
            port = _free_port()
            words = [str(number), "{}x{}".format(*size), str(port)]
            program = await BoxedProgram.start(box, ["/bin/sh", "-c", _SCRIPT, "display", *words])
            up = False
            try:
                async with asyncio.timeout(START_SECONDS):
                    up = await _listens(program, port)
            except TimeoutError:
                raise EnvironmentFault(
                    f"The desktop's display was not up within {START_SECONDS:g} s: {await program.complaints()}."
                ) from None
            finally:
                if not up:
                    await program.end()
            if up:
                return cls(number, password, port, sockets, key, program)
            (sockets / f"X{number}").unlink(missing_ok=True)
        raise EnvironmentFault(
            f"The desktop's display does not start: {await program.complaints()}."
        )

    def fault(self) -> str | None:
        if not self.program.ended:
            return None
        return f"the display has ended (status {self.program.process.returncode})"

    @property
    def ended_by_itself(self) -> bool:
        """True if a server exited or ran out of memory, and none was killed from outside."""
        ended = by_itself(self.program.process.returncode)
        return ended or (self.program.ended and self.program.memory_ran_out())

    async def settle(self) -> None:
        """Wait until the status of servers that are ending is known."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await self.program.process.wait()

    async def close(self) -> None:
        await self.program.end()


async def _listens(program: BoxedProgram, port: int) -> bool:
    """Wait until the VNC server reports that it listens; False if it exits first."""
    assert program.process.stdout is not None
    while line := await program.process.stdout.readline():
        if line.strip() == b"PORT=%d" % port:
            return True
    return False


def _furnish(folder: Path, secret: Mapping[str, bytes]) -> Path:
    """Write the secrets to the sandbox's home folder; return the folder of the sockets.

    The programs may run as another user: everything but the sockets is private to this process's user.
    """
    home, sockets = folder / "home", folder / "sockets"
    for closed in (home, folder / "tmp"):
        closed.chmod(0o700)
    for name, data in secret.items():
        (home / name).write_bytes(data)
    sockets.mkdir()
    sockets.chmod(0o755)
    folder.chmod(0o711)
    return sockets


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _authority(cookie: bytes) -> bytes:
    """Return an `.Xauthority` file with the cookie, for every display number."""
    parts = (b"", b"", b"MIT-MAGIC-COOKIE-1", cookie)
    return struct.pack(">H", _ANY_HOST) + b"".join(
        struct.pack(">H", len(part)) + part for part in parts
    )
