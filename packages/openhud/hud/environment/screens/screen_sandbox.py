"""The sandbox of a browser or a desktop: bubblewrap, with the host's programs only.

It has this run's home and temporary folder, none of the host's processes, and none of its files but installed programs.
When the sandbox or its parent process ends, even by SIGKILL, the kernel kills everything in it, by the PID namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hud import exact_json
from hud.environment.processes.run_processes import start_of_part
from hud.environment.workspace.sandbox.bubblewrap import (
    as_user,
    memory_file,
    required_program,
    sandbox_user,
)
from hud.environment.workspace.sandbox.cgroups import ControlGroup
from hud.environment.workspace.sandbox.lacking import explained, warn_without_groups
from hud.environment.workspace.sandbox.mounts import (
    INSIDE,
    font_cache,
    hidden_files,
    system_mounts,
)
from hud.environment.workspace.sandbox.scripts import script, script_file, script_mounts
from hud.environment.workspace.sandbox.seccomp import filter_program
from hud.processes.tail import Tail

HOME = "/home/user"
_ENTRY = Path(__file__).parent / "inside" / "entry.py"
_STREAM_BYTES = 1 << 28
"""Largest message through a sandbox's pipes, in bytes; screenshots of large pages are the largest."""
_TMPFS_BYTES = 1 << 30
"""Size limit of each folder in memory, in bytes."""
_MEMORY_BYTES = 4 << 30
_PROCESSES, _PROCESSORS = 2048, 4.0
"""Limits of a sandbox's control group: processes and threads together, and CPUs."""
_IN_MEMORY = {"/dev/shm": 1 << 30, "/run": 1 << 26, "/var": 1 << 28}
"""Size limits of the sandbox's own writable folders, in bytes; browsers share images in `/dev/shm`."""
_GRACE_SECONDS = 10.0
_ERRORS_SHOWN = 600
# Entries of /etc that graphical programs read; no passwords or keys.
_ETC = (
    "alternatives ca-certificates chromium chromium.d fonts gtk-3.0 hosts ld.so.cache localtime nsswitch.conf "
    "resolv.conf ssl X11 xdg"
)


@dataclass(frozen=True)
class Box:
    """Contents of a sandbox."""

    folder: Path
    """The run's folder, with the sandbox's `home` and `tmp`."""
    network: bool = True
    """False: the sandbox has its own loopback and no other network."""
    memory_tmp: bool = False
    """True: the temporary folder is a tmpfs, invisible to the host."""
    memory_home: bool = False
    """True: the home folder is a tmpfs, in which the sandbox fills no disk; see `BoxedProgram.open_folder`."""
    memory_bytes: int = _MEMORY_BYTES
    """Limit of the memory of all its processes and of its files in memory, where there are control groups."""
    environment: tuple[tuple[str, str], ...] = ()
    shared: tuple[tuple[Path, str], ...] = ()
    """Mounted folders of the host, with their targets."""
    user: int | None = field(default_factory=sandbox_user)
    """Owner of the sandbox on this machine; None: this process's user."""

    @property
    def home(self) -> Path:
        """The home folder's path on the host."""
        return self.folder / "home"

    @property
    def tmp(self) -> Path:
        """The temporary folder's path on the host."""
        return self.folder / "tmp"

    def hand_over(self) -> None:
        """Change the owner of the sandbox's folders to its user; the rest of the run's folder stays inaccessible to it."""
        if self.user is None:
            return
        self.folder.chmod(0o711)
        for folder in (self.home, self.tmp, *(ours for ours, _ in self.shared)):
            for path in (folder, *folder.rglob("*")):
                os.chown(path, self.user, self.user, follow_symlinks=False)

    def command(
        self,
        program: Sequence[str],
        *,
        seccomp: int,
        entry: int,
        control: int | None,
        groups: Sequence[int],
    ) -> list[str]:
        """Return the command line that runs `program` in the sandbox.

        `seccomp` is a descriptor of the system-call filter, `entry` one of the script that joins the control groups of
        `groups`, starts the program, and serves `control` in a sandbox without network.
        """
        words = [
            required_program("bwrap", "bubblewrap"), "--unshare-user", "--disable-userns", "--uid", "1000", "--gid", "1000",
            "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
            "--hostname", "box", "--die-with-parent", "--new-session", "--cap-drop", "ALL",
            "--proc", "/proc", "--dev", "/dev", "--dir", "/etc",
        ]  # fmt: skip
        for folder, most in _IN_MEMORY.items():
            words += ["--perms", "1777", "--size", str(most), "--tmpfs", folder]
        words += [*system_mounts(_ETC), *font_cache()]
        words += ["--ro-bind", "/proc/sys", "/proc/sys", *hidden_files(), "--seccomp", str(seccomp)]
        if not self.network:
            words.append("--unshare-net")
        words += ["--dir", INSIDE, *script_mounts()]
        words += ["--perms", "0444", "--ro-bind-data", str(entry), script_file(_ENTRY)[0]]
        entrances = ",".join(map(str, groups))
        program = script("entry", "" if control is None else str(control), entrances, *program)
        for in_memory, ours, theirs in (
            (self.memory_tmp, self.tmp, "/tmp"),
            (self.memory_home, self.home, HOME),
        ):
            if in_memory:
                words += ["--perms", "0700", "--size", str(_TMPFS_BYTES), "--tmpfs", theirs]
            else:
                words += ["--bind", str(ours), theirs]
        for ours, theirs in self.shared:
            words += ["--bind", str(ours), theirs]
        words += ["--chdir", HOME]
        # Read-only, since bubblewrap's root file system and its /dev have no size limit.
        words += ["--remount-ro", "/dev", "--remount-ro", "/"]
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
    """A sandboxed program with its descendants."""

    def __init__(
        self,
        process: Process,
        errors: Tail,
        reading: asyncio.BaseTransport,
        control: socket.socket | None,
        group: ControlGroup | None,
    ) -> None:
        self.process = process
        self._errors, self._reading = errors, reading
        self._control, self._group = control, group
        self._asking = asyncio.Lock()

    @classmethod
    async def start(cls, box: Box, program: Sequence[str]) -> BoxedProgram:
        """Start `program`, with pipes as standard input and output; the end of its standard error is kept."""
        await asyncio.to_thread(box.hand_over)
        group = ControlGroup.create(box.memory_bytes, _PROCESSES, _PROCESSORS)
        if group is None:
            warn_without_groups()
        ours = None
        with contextlib.ExitStack() as failure, contextlib.ExitStack() as stack:
            if group is not None:
                failure.callback(group.remove)
            # A pipe: what a page writes on its console would fill a file.
            from_inside, into = os.pipe()
            stack.callback(os.close, into)
            errors = Tail()
            reading, _ = await asyncio.get_running_loop().connect_read_pipe(
                lambda: errors, os.fdopen(from_inside, "rb", 0)
            )
            failure.callback(reading.close)
            seccomp = memory_file(stack, filter_program())
            entry = memory_file(stack, script_file(_ENTRY)[1])
            groups = [] if group is None else group.entrances(stack)
            descriptors = [seccomp, entry, *groups]
            control = None
            if not box.network:
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                failure.callback(ours.close)
                ours.setblocking(False)
                stack.callback(theirs.close)
                control = theirs.fileno()
                descriptors.append(control)
            command = box.command(
                program, seccomp=seccomp, entry=entry, control=control, groups=groups
            )
            prefix, options = _become(box.user)
            starting = asyncio.ensure_future(
                start_of_part(
                    *prefix,
                    *command,
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=into,
                    limit=_STREAM_BYTES,
                    start_new_session=True,
                    pass_fds=descriptors,
                    cwd="/",
                    # Not this process's variables: process 1 inside is bubblewrap's, and keeps what it started with.
                    env={"PATH": os.defpath},
                    **options,
                )
            )
            try:
                process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                # asyncio, cancelled while it connects the pipes, may never return.
                failure.pop_all()
                await cls(await starting, errors, reading, ours, group).end()
                raise
            failure.pop_all()
        return cls(process, errors, reading, ours, group)

    async def listen(self, address: str, port: int) -> socket.socket:
        """Listen at an address of the sandbox's loopback, accepting in this process; raises `OSError`."""
        return socket.socket(fileno=await self._ask({"address": address, "port": port}))

    async def open_folder(self, path: str) -> int:
        """Return a descriptor of a folder in the sandbox, to be closed by the caller; raises `OSError`."""
        return await self._ask({"folder": path})

    async def _ask(self, request: Mapping[str, str | int]) -> int:
        """Return the descriptor that the entry script sends in response to a request."""
        assert self._control is not None, "the box has this machine's network"
        loop = asyncio.get_running_loop()
        async with self._asking:
            answered = asyncio.Event()
            self._control.send(exact_json.dumps(request))
            loop.add_reader(self._control, answered.set)
            try:
                async with asyncio.timeout(_GRACE_SECONDS):
                    await answered.wait()
            finally:
                loop.remove_reader(self._control)
            answer, passed, _, _ = socket.recv_fds(self._control, 1 << 12, 1)
        if not passed:
            raise OSError(exact_json.loads(answer)["refused"] if answer else "the box has ended")
        return passed[0]

    @property
    def ended(self) -> bool:
        """True after its exit."""
        return self.process.returncode is not None

    def memory_ran_out(self) -> bool:
        """Return True if the kernel killed one of its processes for lack of memory."""
        return self._group is not None and self._group.memory_ran_out()

    async def complaints(self) -> str:
        """Return the end of its standard error."""
        text = await self._errors.text()
        return explained(" / ".join(text[-_ERRORS_SHOWN:].split("\n")).strip(" /"))

    async def end(self) -> None:
        """Kill it and its descendants, and wait for their end."""
        if self._control is not None:
            self._control.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.returncode is None:
            # Killing the outer bwrap kills its first process inside, and thereby the PID namespace. While bwrap starts
            # this does not hold yet, so the process group is killed, too.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        try:
            async with asyncio.timeout(_GRACE_SECONDS):
                await self.process.wait()
            await self._errors.text()
        finally:
            self._reading.close()
            if self._group is not None:
                await asyncio.to_thread(self._group.remove)


def _become(user: int | None) -> tuple[list[str], dict[str, Any]]:
    """Return the command prefix and process options for the sandbox's user, without a limit of address space."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return as_user(user), {}

    def change() -> None:
        _lift_memory_limit()  # Before privileges are dropped.
        if user is not None:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)

    return [], {"preexec_fn": change}


def _lift_memory_limit() -> None:
    """Remove the limit of address space: browsers reserve far more than they use."""
    with contextlib.suppress(ValueError, OSError):  # Requires privileges.
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
