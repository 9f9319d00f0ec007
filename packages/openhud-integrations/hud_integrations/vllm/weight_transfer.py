"""Transfer of weights as tensors by vLLM's weight transfer: its trainer side sends, the servers receive.

    POST /init_weight_transfer_engine      once for a set of servers: both sides join one group
    POST /start_weight_update              then, for every new version, in this order
    POST /update_weights                   during the transfer of the tensors
    POST /finish_weight_update
    POST /shutdown_weight_transfer_engine  before the set of servers changes (since vLLM 0.33)

The trainer side is part of vLLM, which must be installed here, too; it makes the first four calls through `SyncClient`.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

from torch import nn

from hud.errors import HudError, InfrastructureFault, UsageError
from hud_integrations.vllm.server import LOAD_SECONDS, Server


class SendingEngine(Protocol):
    """The trainer side: vLLM's `TrainerWeightTransferEngine`."""

    def send_weights(self) -> None:
        """Send the present weights; returns when the servers have them."""


class SyncClient:
    """The control plane of several servers as one, for threads: vLLM's `VLLMWeightSyncClient`."""

    def __init__(
        self, servers: Sequence[Server], sizes: Sequence[int], loop: asyncio.AbstractEventLoop
    ) -> None:
        """`sizes` are the GPUs of each server; `loop` is the servers'."""
        self.servers, self.sizes = servers, sizes
        self._loop = loop
        self.version: str | None = None
        """Name of the next weights."""

    @property
    def world_size(self) -> int:
        """Members of the group: this process, and every GPU of every server."""
        return 1 + sum(self.sizes)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Make every server join the group, each with ranks of its own."""
        offset = int(init_info.get("rank_offset", 1))
        bodies = []
        for size in self.sizes:
            bodies.append({"init_info": {**init_info, "rank_offset": offset}})
            offset += size
        self._call("init_weight_transfer_engine", bodies)

    def start_weight_update(self) -> None:
        """Prepare every server for new weights."""
        self._call("start_weight_update", [None] * len(self.servers))

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Make every server receive the tensors that are being sent."""
        self._call("update_weights", [{"update_info": update_info}] * len(self.servers))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Make every server sample with the received weights, under a name."""
        body = {"weight_version": weight_version or self.version or "base"}
        self._call("finish_weight_update", [body] * len(self.servers))

    def _call(self, name: str, bodies: Sequence[dict[str, Any] | None]) -> None:
        async def call() -> None:
            await asyncio.gather(
                *(
                    server.transfer(name, body)
                    for server, body in zip(self.servers, bodies, strict=True)
                )
            )

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(LOAD_SECONDS)


Connect = Callable[[nn.Module, SyncClient], SendingEngine]
"""Factory of the trainer side for a module, joined with the servers of a client."""


class Transfer:
    """Sender of a module's weights to the current servers."""

    def __init__(self, module: nn.Module, lock: threading.RLock, connect: Connect) -> None:
        """`lock` is held while the weights change; `connect` creates the trainer side."""
        self._module = module
        self._lock = lock
        self._connect = connect
        self._engine: SendingEngine | None = None
        self._client: SyncClient | None = None

    async def send(
        self, servers: Sequence[Server], sizes: Sequence[int], version: str | None
    ) -> None:
        """Send the weights to servers. Raises `HudError`, and `TimeoutError` after `LOAD_SECONDS`.

        The weights must not change meanwhile: call it while publishing, or through `still`.
        """
        client = self._client
        if client is None or [*client.servers, *client.sizes] != [*servers, *sizes]:
            await self.release()
            client = self._client = SyncClient(servers, sizes, asyncio.get_running_loop())
        client.version = version
        # In a separate thread: a hanging broadcast must not block other work.
        await asyncio.wait_for(_in_thread(lambda: self._send(client)), LOAD_SECONDS)

    async def still(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` while the weights are locked; for servers that join between two publications."""
        entered, leave = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def hold() -> None:
            with self._lock, suppress(RuntimeError):  # The loop may be closed by then.
                loop.call_soon_threadsafe(entered.set)
                leave.wait()

        threading.Thread(target=hold, name="hud-transfer", daemon=True).start()
        try:
            await entered.wait()
            await work()
        finally:
            leave.set()

    async def release(self) -> None:
        """Dissolve the group, also on its servers; the next call forms a new one."""
        client, self._engine, self._client = self._client, None, None
        if client is not None:
            await asyncio.gather(*(server.leave_transfer() for server in client.servers))

    def _send(self, client: SyncClient) -> None:
        try:
            if self._engine is None:
                self._engine = self._connect(self._module, client)
            self._engine.send_weights()
        except HudError:
            raise
        # NCCL and vLLM raise many kinds of errors; each is a failed transfer.
        except Exception as error:
            raise InfrastructureFault(
                f"Weights could not be transferred to the vLLM servers: {type(error).__name__}: {error}"
            ) from error


def nccl_engine(module: nn.Module, client: SyncClient) -> SendingEngine:
    """Return vLLM's NCCL sender, connected to every server. Raises `UsageError` where vLLM is not installed."""
    try:
        from vllm.distributed.weight_transfer import (  # type: ignore[import-not-found]
            ModuleSource,
            WeightTransferTrainerFactory,
        )
        from vllm.distributed.weight_transfer.nccl_engine import (  # type: ignore[import-not-found]
            NCCLTrainerInitInfo,
        )
    except ImportError as error:
        raise UsageError(
            "Weights go over NCCL by a part of vLLM that is not installed here: pip install vllm where openhud trains, or "
            "leave --weights out and let servers load folders."
        ) from error
    address = _address_towards(client.servers[0].url)
    init_info = NCCLTrainerInitInfo(
        master_address=address,
        master_port=_free_port(address),
        world_size=client.world_size,
        rank=0,
    )
    engine: SendingEngine = WeightTransferTrainerFactory.trainer_init(
        init_info=init_info, client=client, source=ModuleSource(module)
    )
    return engine


def _address_towards(url: str) -> str:
    """Return the local address through which a server reaches this machine."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((parts.hostname, parts.port or 80))  # Sends nothing.
        return str(probe.getsockname()[0])


def _free_port(address: str) -> int:
    with socket.socket() as bound:
        bound.bind((address, 0))
        return int(bound.getsockname()[1])


async def _in_thread(work: Callable[[], None]) -> None:
    """Run work in a daemon thread."""
    done: Future[None] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            work()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="hud-transfer", daemon=True).start()
    await asyncio.wrap_future(done)
