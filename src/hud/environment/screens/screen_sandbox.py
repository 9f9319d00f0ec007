"""The box that a browser or a desktop lives in: bubblewrap, with nothing of the host but its programs.

Inside there is a home folder and a temporary folder of this run, no process of the host, and no file of it but
what is installed. When the box ends, or whoever started it does, even by SIGKILL, the kernel ends all in it:
they live in a process namespace of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from hud.environment.workspace.sandbox.bubblewrap import (
    as_user,
    found,
    memory_file,
    sandbox_user,
)
from hud.environment.workspace.sandbox.mounts import (
    INSIDE,
    hidden_files,
    script,
    script_mounts,
    system_mounts,
)
from hud.environment.workspace.sandbox.seccomp import filter_program

HOME = "/home/user"
_ENTRY = Path(__file__).parent / "inside" / "entry.py"
_STREAM_BYTES = 1 << 28
"""Limit of one message through a box's pipes; pictures of large pages are the largest."""
_MEMORY_TMP_BYTES = 1 << 30
_GRACE_SECONDS = 10.0
_ERRORS_SHOWN = 600
# What programs with windows read of /etc; passwords and keys are not among it.
_ETC = (
    "alternatives ca-certificates chromium chromium.d fonts gtk-3.0 hosts ld.so.cache localtime nsswitch.conf "
    "resolv.conf ssl X11 xdg"
)


@dataclass(frozen=True)
class Box:
    """Contents of a box."""

    folder: Path
    """The run's folder: `home` and `tmp` in it are the box's."""
    network: bool = True
    """False: the box has a loopback of its own and reaches nothing else."""
    memory_tmp: bool = False
    """True: the temporary folder is in memory, ends with the box, and the host does not see it."""
    environment: tuple[tuple[str, str], ...] = ()
    shared: tuple[tuple[Path, str], ...] = ()
    """Folders of the host that are in the box, too, and where."""
    user: int | None = field(default_factory=sandbox_user)
    """Whom the box belongs to on this machine; None: this process's own user."""

    @property
    def home(self) -> Path:
        """The home folder, as the host sees it."""
        return self.folder / "home"

    @property
    def tmp(self) -> Path:
        """The temporary folder, as the host sees it."""
        return self.folder / "tmp"

    def hand_over(self) -> None:
        """Give the folders in the box to its user; what else is in the run's folder stays closed to it."""
        if self.user is None:
            return
        self.folder.chmod(0o711)
        for folder in (self.home, self.tmp, *(ours for ours, _ in self.shared)):
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self.user, self.user, follow_symlinks=False)

    def command(
        self, program: Sequence[str], *, seccomp: int, entry: int | None = None, control: int = -1
    ) -> list[str]:
        """Return the command line that runs `program` in the box.

        `seccomp` is a descriptor of the filter of system calls; `entry` one of the script that starts the program and
        talks over `control`, in a box without a network.
        """
        words = [
            found("bwrap", "bubblewrap"), "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000",
            "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
            "--hostname", "box", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
            "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run", "--tmpfs", "/var", "--dir", "/etc",
            *system_mounts(_ETC),
        ]  # fmt: skip
        words += ["--ro-bind", "/proc/sys", "/proc/sys", *hidden_files(), "--seccomp", str(seccomp)]
        if not self.network:
            words.append("--unshare-net")
        if entry is not None:
            words += ["--dir", INSIDE, *script_mounts()]
            words += ["--perms", "0444", "--ro-bind-data", str(entry), f"{INSIDE}/entry.py"]
            program = script("entry", str(control), *program)
        if self.memory_tmp:
            words += ["--size", str(_MEMORY_TMP_BYTES), "--tmpfs", "/tmp"]
        else:
            words += ["--bind", str(self.tmp), "/tmp"]
        for ours, theirs in self.shared:
            words += ["--bind", str(ours), theirs]
        words += ["--bind", str(self.home), HOME, "--chdir", HOME]
        words.append("--clearenv")
        for name, value in (*_ENVIRONMENT, *self.environment):
            words += ["--setenv", name, value]
        return [*words, "--", *program]


_ENVIRONMENT = (
    ("HOME", HOME),
    ("USER", "user"),
    ("LANG", "C.UTF-8"),
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
    ("TMPDIR", "/tmp"),
)


class BoxedProgram:
    """A program that runs in a box, and everything that it starts."""

    def __init__(self, process: Process, errors: Path, control: socket.socket | None) -> None:
        self.process = process
        self._errors = errors
        self._control = control
        self._asking = asyncio.Lock()

    @classmethod
    async def start(cls, box: Box, program: Sequence[str]) -> BoxedProgram:
        """Start `program`; its standard input and output are pipes, its complaints go to a file."""
        errors = box.folder / "errors"
        await asyncio.to_thread(box.hand_over)
        ours = None
        with errors.open("wb") as file, contextlib.ExitStack() as stack:
            descriptors = [memory_file(stack, filter_program())]
            asked: dict[str, int] = {}
            if not box.network:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                ours.setblocking(False)
                stack.callback(theirs.close)
                asked = {
                    "entry": memory_file(stack, _ENTRY.read_bytes()),
                    "control": theirs.fileno(),
                }
                descriptors += asked.values()
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(
                    *box.command(program, seccomp=descriptors[0], **asked),
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=file,
                    limit=_STREAM_BYTES,
                    start_new_session=True,
                    pass_fds=descriptors,
                    cwd="/",
                    **_become(box.user),
                )
            )
            try:
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # asyncio itself, cancelled while it connects the pipes, may wait for ever.
                await cls(await starting, errors, ours).end()
                raise
        return cls(process, errors, ours)

    async def listen(self, address: str, port: int) -> socket.socket:
        """Listen at an address of the box's own loopback, and accept out here; raises `OSError`."""
        assert self._control is not None, "the box has this machine's network"
        loop = asyncio.get_running_loop()
        async with self._asking:
            answered = asyncio.Event()
            self._control.send(orjson.dumps({"address": address, "port": port}))
            loop.add_reader(self._control, answered.set)
            try:
                async with asyncio.timeout(_GRACE_SECONDS):
                    await answered.wait()
            finally:
                loop.remove_reader(self._control)
            said, passed, _, _ = socket.recv_fds(self._control, 1 << 12, 1)
        if not passed:
            raise OSError(orjson.loads(said)["refused"] if said else "the box has ended")
        return socket.socket(fileno=passed[0])

    @property
    def ended(self) -> bool:
        """True when it is not running any more."""
        return self.process.returncode is not None

    def complaints(self) -> str:
        """Return the end of what it wrote to its standard error."""
        with contextlib.suppress(OSError):
            text = self._errors.read_text(encoding="utf-8", errors="replace")
            return " / ".join(text[-_ERRORS_SHOWN:].split("\n")).strip(" /")
        return ""

    async def end(self) -> None:
        """End it and all that it started, and wait until they are gone."""
        if self._control is not None:
            self._control.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.returncode is None:
            # The outer bwrap; the kernel ends its first process inside with it, and that one's death all others. While
            # they come up the kernel does not know yet, but they are all of one group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        async with asyncio.timeout(_GRACE_SECONDS):
            await self.process.wait()


def _become(user: int | None) -> dict[str, Any]:
    """Return how a box is started as its user, and without a limit of address space."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return as_user(user)

    def change() -> None:
        _lift_memory_limit()  # While that is still allowed.
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)

    return {"preexec_fn": change}


def _lift_memory_limit() -> None:
    """Let a browser reserve the address space that it wants, which is far more than the memory that it takes."""
    with contextlib.suppress(ValueError, OSError):  # Only a privileged process may.
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
