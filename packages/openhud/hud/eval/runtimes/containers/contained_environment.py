"""Environments in containers: an image's CMD serves the control channel on port 8765, as HUD's images do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

from hud.environment.channel.client.remote_connection import Loss, RemoteConnection
from hud.environment.processes.reaper import signalled
from hud.errors import InfrastructureFault
from hud.eval.runtimes.containers.container import Container, ContainerSpec
from hud.eval.runtimes.containers.loopback import networked_container
from hud.eval.runtimes.process_loss import loss_of

PORT = 8765
READY_SECONDS = 120.0
_CHUNK = 1 << 16
_RELAY = """
import socket, sys, threading
channel = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def send():
    while chunk := sys.stdin.buffer.read1(65536):
        channel.sendall(chunk)
    channel.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while chunk := channel.recv(65536):
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()
"""
"""Copies standard input and output to a port inside: a container without a network has no published one."""


@asynccontextmanager
async def contained_environment(
    spec: ContainerSpec, ready_seconds: float = READY_SECONDS
) -> AsyncIterator[RemoteConnection]:
    """A connection to the environment of a new container, which ends with the block.

    Raises `InfrastructureFault` for an image that is not here, or that does not serve within `ready_seconds`.
    """
    async with serving_container(spec) as (contained, host, port):
        connection = await RemoteConnection.dial(host, port, ready_timeout=ready_seconds)
        connection.why_lost = lambda: _loss_of(contained)
        try:
            yield connection
        finally:
            await connection.close()


@asynccontextmanager
async def serving_container(spec: ContainerSpec) -> AsyncIterator[tuple[Container, str, int]]:
    """A new container, with host and port of its control channel on this machine."""
    async with AsyncExitStack() as stack:
        contained = await stack.enter_async_context(networked_container(replace(spec, port=PORT)))
        await contained.wait_until_healthy()
        if spec.network == "none":
            host, port = "127.0.0.1", await stack.enter_async_context(_relayed(contained))
        else:
            host, port = await contained.address(PORT)
        yield contained, host, port


async def _loss_of(contained: Container) -> Loss:
    """Return how a run's container ended, as the loss of its connection."""
    try:
        running, status, lacked_memory = await contained.state()
    except InfrastructureFault as error:
        return Loss(f"its container cannot be found: {error}", InfrastructureFault)
    if running:
        return Loss("it closed its connection, but its container runs on", alone=True)
    return loss_of(signalled(status), "", lacked_memory=lacked_memory)


@asynccontextmanager
async def _relayed(contained: Container) -> AsyncIterator[int]:
    """A port of this machine's loopback whose connections lead to the control channel by `exec`."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        command = ["exec", "--interactive", contained.identifier, "python3", "-c", _RELAY, str(PORT)]  # fmt: skip
        process = await contained.engine.start(*command)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            sending = asyncio.ensure_future(_pump(reader, process.stdin))
            await _pump(process.stdout, writer)
            sending.cancel()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy bytes until the end of either side."""
    with suppress(ConnectionError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()
