"""`ContainerLoopback`: sockets of a container's loopback on which this process accepts: a way out for a container without a network."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from hud.environment.workspace.network.open_network import OpenNetwork
from hud.environment.workspace.network.policy import Network
from hud.eval.runtimes.containers.container import Container, ContainerSpec, container

_INSIDE = "/run/hud-loopback"
_LISTEN = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
control = socket.socket(socket.AF_UNIX)
control.connect(sys.argv[3])
socket.send_fds(control, [b"listening"], [listener.fileno()])
"""
"""Passes a listening socket out of the container, by a socket in a mounted folder."""
_SECONDS = 30.0


class ContainerLoopback:
    """The loopback of a container that mounts `folder`; its image needs `python3`."""

    def __init__(self, contained: Container, folder: Path) -> None:
        self._contained, self._folder = contained, folder

    async def listen(self, address: str, port: int) -> socket.socket:
        """Listen at an address of the loopback, accepting in this process; raises `OSError`."""
        loop = asyncio.get_running_loop()
        path = self._folder / str(port)
        with socket.socket(socket.AF_UNIX) as control:
            control.setblocking(False)
            control.bind(str(path))
            path.chmod(0o666)  # The container's user may be another one.
            control.listen(1)
            accepting = asyncio.ensure_future(loop.sock_accept(control))
            try:
                command = ["python3", "-c", _LISTEN, address, str(port), f"{_INSIDE}/{port}"]
                ended = await self._contained.execute(command, seconds=_SECONDS, killing=False)
                if ended.exit_code != 0 or not accepting.done():
                    lines = ended.stderr.strip().splitlines()
                    raise OSError(lines[-1] if lines else "python3 did not listen")
            finally:
                accepting.cancel()
        connection, _ = accepting.result()
        with connection:
            _, passed, _, _ = socket.recv_fds(connection, 16, 1)
        if not passed:
            raise OSError("python3 did not listen")
        return socket.socket(fileno=passed[0])


@asynccontextmanager
async def networked_container(spec: ContainerSpec) -> AsyncIterator[Container]:
    """A running container for the block, with a proxy to `spec.allowed_hosts` if it has such a list. Raises `EnvironmentFault`."""
    if spec.allowed_hosts is None:
        async with container(spec) as contained:
            yield contained
        return
    policy = Network(True, tuple(spec.allowed_hosts))
    with tempfile.TemporaryDirectory(prefix="hud-loopback-") as name:
        os.chmod(name, 0o755)
        mounts = {**spec.mounts, _INSIDE: name}
        variables = {**policy.variables(), **spec.variables}
        async with container(replace(spec, mounts=mounts, variables=variables)) as contained:
            network = OpenNetwork(ContainerLoopback(contained, Path(name)))
            try:
                await network.open(policy)
                yield contained
            finally:
                await network.close()
