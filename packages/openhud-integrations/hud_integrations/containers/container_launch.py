"""`ContainerLaunch`: a workspace's sandbox in a container of docker or podman.

Process 1 is OpenHUD's supervisor, executed by this machine's Python from read-only mounts. It connects to a socket in one of them,
and exits when this process closes it, also by a crash: the engine then removes the container. The container has no network of
its own; connections are relayed over its loopback, as in every workspace.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from hud.environment.processes.run_processes import start_of_part
from hud.environment.workspace.sandbox.bubblewrap import Plan
from hud.environment.workspace.sandbox.lacking import warn_without_landlock
from hud.environment.workspace.sandbox.launch import Launch
from hud.environment.workspace.sandbox.limits import MB
from hud.environment.workspace.sandbox.mounts import HOST_NAME, INSIDE, mounted_programs
from hud.environment.workspace.sandbox.root_image import MACHINE
from hud.environment.workspace.sandbox.scripts import script, script_mounts
from hud.errors import EnvironmentFault, InfrastructureFault
from hud.eval.runtimes.containers.container_engine import ContainerEngine, last_line
from hud_integrations.containers.scratch_folder import FILES, ScratchFolder

_SOCKET = "control"
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")  # fmt: skip
"""Capabilities of an image's root, for package managers and services; none reaches beyond the container."""
_END_SECONDS = 30.0
_KILLED, _ENGINE_FAILED = 137, 125
"""Exit statuses of `run`: its process was killed; from here on, the engine itself failed."""


class ContainerLaunch(Launch):
    """A container of one workspace, removed at its end."""

    seconds = 120.0

    def __init__(
        self,
        engine: ContainerEngine,
        image: str,
        plan: Plan,
        as_user: str | None = None,
        network: str | None = None,
    ) -> None:
        """`as_user`: in place of the image's user. `network`: another container's, in place of one of its own."""
        self.engine, self.image, self.plan = engine, image, plan
        self._as_user, self._network = as_user, network
        self.name = f"hud-{uuid4().hex}"
        self._scratch: ScratchFolder | None = None

    async def start(self) -> socket.socket:
        warn_without_landlock()
        self._scratch = scratch = await asyncio.to_thread(ScratchFolder, self.plan)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            path = scratch.inside / _SOCKET
            listener.bind(str(path))
            path.chmod(0o666)
            listener.listen(1)
            listener.setblocking(False)
            starting = asyncio.ensure_future(
                start_of_part(
                    self.engine.program,
                    *self._arguments(scratch),
                    env=self.engine.variables({}),
                    # Where a container's memory runs out, podman's monitor writes a file into its current folder.
                    cwd=scratch.path,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.PIPE,
                    start_new_session=True,  # The terminal's Ctrl+C is this process's.
                )
            )
            try:
                self.process = await asyncio.shield(starting)
            except asyncio.CancelledError:
                self.process = await starting
                raise
            control = await self._accepted(listener, self.process)
        path.unlink()
        self._pid, owner, _ = struct.unpack("3i", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))  # fmt: skip
        self.user = owner if os.geteuid() == 0 and owner != 0 else None
        return control

    @property
    def network(self) -> str:
        """The started container's network, as another one's `run --network` takes it."""
        # By its process: podman does not remove a container whose name another one has.
        return f"ns:/proc/{self._pid}/ns/net" if self.engine.program == "podman" else f"container:{self.name}"  # fmt: skip

    async def _accepted(self, listener: socket.socket, process: asyncio.subprocess.Process) -> socket.socket:  # fmt: skip
        """Return the supervisor's connection. Raises `EnvironmentFault` if the engine ends before it."""
        accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
        ended = asyncio.ensure_future(process.wait())
        try:
            await asyncio.wait((accepting, ended), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not accepting.cancel():
                accepting.result()[0].close()
            raise
        if accepting.done():
            return accepting.result()[0]
        accepting.cancel()
        assert process.stderr is not None
        reason = last_line(await process.stderr.read(), process.returncode)
        raise EnvironmentFault(f"A container could not be started: {self.engine.program}: {reason}")

    async def end(self) -> None:
        """Wait for the container's removal, which its supervisor's end began."""
        process = self.process
        if process is not None:
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await process.wait()
            except TimeoutError:
                at_once = ["--time", "0"] if self.engine.program == "podman" else []
                with suppress(InfrastructureFault):  # It has just ended.
                    await self.engine.call("rm", "--force", *at_once, self.name)
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._scratch is not None:
            await asyncio.to_thread(self._scratch.remove)

    @property
    def ended_by_itself(self) -> bool:
        return super().ended_by_itself and self.process.returncode < _ENGINE_FAILED  # type: ignore[union-attr,operator]

    def memory_ran_out(self) -> bool:
        """Return True if podman's monitor noticed it; of docker's containers, if process 1 was killed."""
        noticed = self._scratch is not None and (self._scratch.path / "oom").exists()
        killed = self.process is not None and self.process.returncode == _KILLED
        return noticed or (killed and self.engine.program == "docker")

    def _arguments(self, scratch: ScratchFolder) -> list[str]:
        """Return the arguments of `run`."""
        plan, limits = self.plan, self.plan.limits
        memory = f"{int(limits.memory_mb * MB)}b"
        scratch_size = f"rw,exec,nosuid,nodev,size={int(limits.scratch_mb * MB)}"
        arguments = ["run", "--rm", "--pull=never", "--name", self.name]
        arguments += ["--network", "none", "--hostname", HOST_NAME] if self._network is None else ["--network", self._network]  # fmt: skip
        arguments += [] if self._as_user is None else ["--user", self._as_user]
        arguments += ["--security-opt", "no-new-privileges", "--cap-drop", "ALL"]
        arguments += [f"--cap-add={capability}" for capability in _CAPABILITIES]
        arguments += ["--memory", memory, "--memory-swap", memory, "--cpus", str(limits.processors)]
        arguments += ["--pids-limit", str(int(limits.processes)), "--shm-size", str(int(limits.scratch_mb * MB))]  # fmt: skip
        for folder in ("/tmp", *plan.folders):
            arguments += ["--tmpfs", f"{folder}:{scratch_size},mode=1777"]
        for source, target in self._mounts(scratch):
            arguments += ["--volume", f"{source}:{target}:ro"]
        # The image's own variables must not choose the supervisor's libraries.
        arguments += ["--env", "LD_PRELOAD=", "--env", "LD_LIBRARY_PATH="]
        bounds = limits.of_each_process(grouped=True)
        del bounds["RLIMIT_NPROC"]  # Of the machine's user; the container has a limit of its own.
        loader, *command = plan.program(
            script(
                "supervisor",
                f"{INSIDE}/{_SOCKET}",
                "",
                ",".join(f"{name}={most}" for name, most in bounds.items()),
                *plan.writable,
            )
        )
        return [*arguments, "--workdir", "/", "--entrypoint", loader, self.image, *command]

    def _mounts(self, scratch: ScratchFolder) -> Iterable[tuple[str, str]]:
        """Return files and folders of this machine, and their places inside."""
        yield str(scratch.inside), INSIDE
        yield "/usr", MACHINE
        own = script_mounts()
        yield from zip(own[1::3], own[2::3], strict=True)
        for path in FILES:
            yield str(scratch.path / path.rpartition("/")[2]), path
        for path in mounted_programs(None):
            yield path, path
        for mount in self.plan.mounts:
            yield str(Path(mount.source).expanduser().resolve()), mount.target
