"""`Workspace`: a shell and a folder of files for each run, as a part of an environment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from hud.capabilities import Capability
from hud.environment.part import NoSnapshotError, OpenPart, Part
from hud.environment.spares import Spares
from hud.environment.workspace.files import transfer
from hud.environment.workspace.files.changes import SKIPPED
from hud.environment.workspace.files.follower import Following
from hud.environment.workspace.files.saved_files import SavedFiles
from hud.environment.workspace.network.open_network import OpenNetwork
from hud.environment.workspace.network.policy import Network, Peer
from hud.environment.workspace.sandbox.bubblewrap import Plan
from hud.environment.workspace.sandbox.commands import run_inside
from hud.environment.workspace.sandbox.limits import WorkspaceLimits
from hud.environment.workspace.sandbox.mounts import USER, Mount, taken
from hud.environment.workspace.sandbox.root_image import SandboxImage
from hud.environment.workspace.sandbox.sandbox import Sandbox
from hud.environment.workspace.ssh_server import WorkspaceServer
from hud.errors import AgentFault, EnvironmentFault, UsageError
from hud.graders.command import CommandOutcome

if TYPE_CHECKING:
    from hud.environment.run import EnvironmentRun

COMMAND_SECONDS = 600.0
OUTPUT_BYTES = 1 << 16


class Workspace(Part["OpenWorkspace"]):
    """A shell and a folder of files for each run, in a sandbox; `env.workspace(...)` adds one. Agents connect over SSH.

    The folder, `guest_path` inside, starts as a copy of `root`, or empty; changes are visible in their run only, and never
    change `root`. `mounts` are further files of this machine, read-only; `folders` are further writable folders, empty at the start;
    `env` are variables. With `network` programs
    access the web through a proxy: public hosts, or `allowed_hosts` only (`pypi.org`, `*.example.org`,
    `git.example.org:9418`). `peers` are services available by name. Changed files are recorded for each step, except names
    and patterns in `untracked`. At the agent's end its connections are closed and all processes killed; with
    `keeps_running` processes continue, so that graders can use servers that the agent started. `image` is a
    container image, in place of the machine's programs: `guest_path` is then its working directory, in which its files stay.
    `spares` sandboxes are up before a run needs them, from the first run on; None: two while runs follow each other.
    With `snapshots` a preempted run goes on from the files that it had after a step; the task's setup must do the same each time, and
    processes end: `restart` is a command that starts those that are to run.
    """

    confines_shells = True

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        name: str = "shell",
        guest_path: str | None = None,
        mounts: Sequence[Mount] = (),
        folders: Sequence[str] = (),
        network: bool = False,
        allowed_hosts: Sequence[str] | None = None,
        peers: Sequence[Peer] = (),
        env: Mapping[str, str] | None = None,
        limits: WorkspaceLimits | None = None,
        track_files: bool = True,
        untracked: Sequence[str] = SKIPPED,
        keeps_running: bool = False,
        image: SandboxImage | None = None,
        spares: int | None = None,
        snapshots: bool = False,
        restart: str | None = None,
    ) -> None:
        if restart is not None and not snapshots:
            raise UsageError("A workspace's restart command goes with snapshots=True.")
        if snapshots and image is not None:
            # An overlay shows files of its layers with other devices than its own, which a snapshot leaves out.
            raise UsageError(
                "A workspace of a container image has no snapshots; leave snapshots out."
            )
        folder = _own_folder("guest_path", guest_path or _default_folder(image))
        further = tuple(_own_folder("folders", path) for path in folders)
        self.root = None if root is None else Path(root).expanduser().absolute()
        self.name = name
        self.network = Network(
            network, None if allowed_hosts is None else tuple(allowed_hosts), tuple(peers)
        )
        self.track_files = track_files
        self.untracked = tuple(untracked)
        self.keeps_running = keeps_running
        self.snapshots, self.restart = snapshots, restart
        self.plan = Plan(
            folder,
            limits or WorkspaceLimits(),
            tuple(mounts),
            self.network.hosts(),
            {
                **({} if image is None else image.variables),
                **self.network.variables(),
                **(env or {}),
            },
            further,
            image,
        )
        if image is not None:
            image.shell  # noqa: B018 - raises without a shell
            for path in (folder, *further, *(mount.target for mount in mounts)):
                image.check_path(path)
        self._spares = Spares(
            lambda: OpenWorkspace.start(self),
            lambda opened: opened.close(),
            lambda opened: opened.sandbox.problem is None,
            spares,
        )

    @asynccontextmanager
    async def open(self, run: EnvironmentRun) -> AsyncIterator[OpenWorkspace]:
        """Open a run's workspace. Raises `EnvironmentFault` if its root is no folder."""
        if self.root is not None and not self.root.is_dir():
            raise EnvironmentFault(
                f"Environment {run.name!r}: the workspace {self.name!r} has no folder {str(self.root)!r} to "
                "begin with."
            )
        opened = await self._spares.take()
        try:
            await opened.begin(run.name)
            yield opened
        finally:
            await opened.close()

    async def bash(
        self,
        command: str,
        *,
        cwd: str | Path | None = None,
        timeout: float = COMMAND_SECONDS,
        alone: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> CommandOutcome:
        """Run a command in this run's workspace; `exit_code` None: it was killed after `timeout` seconds.

        `alone`: all other processes are killed before, and none is started until it has ended.
        """
        return await self.opened.bash(command, cwd=cwd, timeout=timeout, alone=alone, env=env)

    async def read(self, path: str) -> bytes:
        """Return the contents of a file; raises `FileNotFoundError` if it does not exist or is unreadable.

        After an agent worked there, it is the agent's failure `NotLeftThere`, with reward 0 if uncaught.
        """
        opened = self.opened
        try:
            return await transfer.read(opened.sandbox, path)
        except FileNotFoundError as error:
            opened.check()
            if opened.server.was_used:
                raise NotLeftThere(str(error)) from error
            raise

    async def write(self, path: str, data: str | bytes) -> None:
        """Write a file and create its folders."""
        content = data.encode() if isinstance(data, str) else data
        opened = self.opened
        with opened.whose_fault():
            await transfer.write(opened.sandbox, path, content)

    async def copy_in(self, source: str | Path, target: str = ".") -> None:
        """Copy a file, or a folder's contents, from this machine to `target`."""
        opened = self.opened
        with opened.whose_fault():
            await transfer.copy_in(opened.sandbox, str(source), target)

    async def empty(self, path: str) -> None:
        """Make `path` an empty folder, whatever the agent left there, and delete its links that lead into it.

        Call it before `copy_in` of hidden tests, after the agent's end.
        """
        opened = self.opened
        with opened.whose_fault():
            await transfer.empty(opened.sandbox, path)

    @property
    def was_used(self) -> bool:
        """True once an agent has started a program or a file transfer in this run's workspace."""
        return self.opened.server.was_used

    async def connect(self, port: int, target: str) -> None:
        """Forward the workspace's `port` to a service at `target` (`host:port`), for this run."""
        await self.opened.network.connect(port, *Peer("service", port, target).address)

    async def reach(self, port: int) -> str:
        """Return a local address (`127.0.0.1:40123`) that is forwarded to the workspace's `port`."""
        return f"127.0.0.1:{await self.opened.network.reach(port)}"

    async def end_all(self) -> None:
        """Kill all processes of this run's workspace; its files stay."""
        await self.opened.end_all()

    def check_running(self) -> None:
        """Raise `UsageError` if the agent's processes were already killed."""
        self.opened.check_running()


def _default_folder(image: SandboxImage | None) -> str:
    """Return the folder of a workspace that names none: the image's working directory, if it has one."""
    return "/workspace" if image is None or image.workdir == "/" else image.workdir


def _own_folder(argument: str, path: str) -> str:
    """Return a folder's path in the sandbox; raises `UsageError` for one that the sandbox uses itself."""
    folder = PurePosixPath(path)
    if not folder.is_absolute() or ".." in folder.parts or taken(path):
        raise UsageError(
            f"A workspace's {argument} must be an absolute path of its own, not {path!r}."
        )
    return str(folder)


class NotLeftThere(AgentFault, FileNotFoundError):
    """A file that the agent should have written is missing."""


class OpenWorkspace(OpenPart):
    """A run's workspace, or a spare that is up before its run."""

    def __init__(self, part: Workspace) -> None:
        self.sandbox = sandbox = Sandbox(part.plan)
        self.server = WorkspaceServer(sandbox)
        self.network = OpenNetwork(sandbox, sandbox.dial)
        self._run_name, self._part = part.name, part
        self._files = Following(sandbox, part.untracked) if part.track_files else None
        self._saved = SavedFiles(sandbox)
        self._looking = asyncio.Lock()
        self._clock: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, part: Workspace) -> OpenWorkspace:
        """Start a sandbox, its outgoing connections and its server. Raises `EnvironmentFault`."""
        opened = cls(part)
        listening = asyncio.ensure_future(opened.server.start())  # While the sandbox starts.
        try:
            await opened.sandbox.start()
            await opened.network.open(part.network)
            await asyncio.shield(listening)
        except BaseException:
            listening.add_done_callback(lambda _: opened.server.close())
            await opened.close()
            raise
        return opened

    async def begin(self, run_name: str) -> None:
        """Copy the workspace's root in, and admit agents."""
        self._run_name = run_name
        if self._part.root is not None:
            await transfer.copy_in(self.sandbox, str(self._part.root), ".")
        plan, keys = self._part.plan, self.server.keys
        self.capability = Capability.ssh(
            self._part.name,
            url=f"ssh://127.0.0.1:{self.server.port}",
            user=USER,
            host_pubkey=keys.host_public,
            client_key=keys.client_private,
            shell="bash",
            cwd=plan.folder,
            isolation="bwrap",
        )
        if self._files is not None:
            await self._files.begin()
        self._clock = self.sandbox.loop.call_later(plan.limits.seconds, self._time_is_up)

    async def close(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
        if self._ending is not None:
            self._ending.cancel()
        self.server.close()
        try:
            await self.network.close()
        finally:
            await self.sandbox.close()

    async def bash(
        self,
        command: str,
        *,
        cwd: str | Path | None,
        timeout: float,
        alone: bool,
        env: Mapping[str, str] | None,
    ) -> CommandOutcome:
        """Run a command; exclusive ones wait for each other."""
        if alone:
            async with self.server.alone:
                await self.end_all()
                outcome = await self._bash(command, cwd, timeout, env)
        else:
            outcome = await self._bash(command, cwd, timeout, env)
        if outcome.exit_code != 0:
            self.check()  # Not the command, but its workspace may have failed.
        return outcome

    async def end_all(self) -> None:
        """Kill all processes; no effect in a workspace that its agent ended."""
        with suppress(OSError):
            await self.sandbox.kill_all()
        self.check()

    async def begin_task(self) -> None:
        self.server.grading = False

    async def mark(self) -> None:
        await self._saved.begin()

    async def save(self) -> bytes:
        return await self._saved.save()

    async def restore(self, archive: bytes) -> None:
        await self._saved.restore(archive)
        if self._part.restart is not None:
            await self._start(self._part.restart)
        if self._files is not None:
            await self._files.changed()  # Of the steps before: they are on record.

    async def _start(self, command: str) -> None:
        """Start a command in the workspace's folder, and leave it running."""
        descriptors = [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC) for _ in range(3)]
        script = 'cd -- "$1" && eval "$2"'
        argv = [self.sandbox.plan.shell, "-c", script, "bash", self.sandbox.plan.folder, command]
        try:
            await self.sandbox.spawn(argv, descriptors)
        except OSError as error:
            raise NoSnapshotError(f"its restart command cannot be started: {error}") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    async def begin_grading(self) -> None:
        async with self.server.alone:  # Processes being started are killed, too.
            self.server.grading = True
            self.server.hang_up()
            if not self._part.keeps_running:
                await self.end_all()

    def check_running(self) -> None:
        """Raise `UsageError` if the agent's processes were already killed."""
        if self.server.grading and not self._part.keeps_running:
            raise UsageError(
                f"What the agent started in the workspace {self._part.name!r} ended with the agent; declare "
                "env.workspace(..., keeps_running=True) to grade its servers with among_running=True."
            )

    @contextmanager
    def whose_fault(self) -> Iterator[None]:
        """Raise `AgentFault` if a file cannot be written after the agent worked there."""
        try:
            yield
        except transfer.Refused as refused:
            self.check()
            if self.server.was_used:
                raise AgentFault(f"{refused} The agent was at work there before.") from refused
            raise

    async def _bash(
        self, command: str, cwd: str | Path | None, timeout: float, env: Mapping[str, str] | None
    ) -> CommandOutcome:
        folder = transfer.within(self.sandbox, str(cwd or "."))
        script = 'cd -- "$1" && eval "$2"'
        return await run_inside(
            self.sandbox,
            [self.sandbox.plan.shell, "-c", script, "bash", folder, command],
            seconds=timeout,
            kept_bytes=OUTPUT_BYTES,
            variables=env,
        )

    async def observe(self) -> dict[str, Any]:
        if self._files is None or self.sandbox.problem is not None:
            return {}
        async with self._looking:
            changed = await self._files.changed()
        return {"files": changed} if changed else {}

    async def follow_files(self) -> Following | None:
        if self._files is None:
            return None
        following = Following(self.sandbox, self._part.untracked)
        await following.begin()
        return following

    def fault(self) -> str | None:
        problem = self.sandbox.problem
        if problem is None or self.sandbox.launch.memory_ran_out():
            return None  # Exhausting the workspace's memory is no fault of the environment.
        return f"Environment {self._run_name!r}: {self._part.name!r}: {problem}"

    def broken_by_agent(self) -> bool:
        return self.server.was_used and self.sandbox.launch.ended_by_itself

    def _time_is_up(self) -> None:
        seconds = self._part.plan.limits.seconds
        self.server.refusal = f"its time is up ({seconds:g} s)"
        self._ending = asyncio.ensure_future(self._end_quietly())

    async def _end_quietly(self) -> None:
        with suppress(OSError):
            await self.sandbox.kill_all()
