"""Stand-ins for both halves of vLLM's weight transfer: the same calls in the same order, over TCP instead of NCCL."""

import asyncio
import socket
import threading
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict
from tests.integrations.vllm.vllm_requests import Refused


class InitInfo(BaseModel):
    model_config = ConfigDict(extra="forbid")

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    packed: bool = False


class UpdateInfo(BaseModel):
    model_config = ConfigDict(extra="forbid")

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class ReceivingHalf:
    """What a server does with the calls of a transfer; those out of order are refused as vLLM's engine fails at them."""

    def __init__(self, gpus: int) -> None:
        self.gpus = gpus
        self.group: socket.socket | None = None
        self.info: InitInfo | None = None
        self.started = False
        self.updates = 0
        self.version = "default"
        self.busy = asyncio.Lock()
        """Held during a call: its workers do one after another."""

    async def called(self, name: str, body: dict[str, Any], decoder: torch.nn.Module) -> None:
        async with self.busy:
            await self._called(name, body, decoder)

    async def _called(self, name: str, body: dict[str, Any], decoder: torch.nn.Module) -> None:
        if name == "init_weight_transfer_engine":
            await asyncio.to_thread(self.init, InitInfo.model_validate(body.pop("init_info")))
        elif name == "shutdown_weight_transfer_engine":
            self.shutdown()
        elif name == "start_weight_update":
            self.start()
        elif name == "update_weights":
            info = UpdateInfo.model_validate(body.pop("update_info"))
            await asyncio.to_thread(self.update, info, dict(decoder.named_parameters()))
        else:
            self.finish(body.pop("weight_version", None))
        if body:
            raise Refused(400, f"unknown fields: {sorted(body)}")

    def init(self, info: InitInfo) -> None:
        if info.rank_offset < 1 or info.rank_offset + self.gpus > info.world_size:
            raise Refused(500, f"ranks from {info.rank_offset} do not fit {info.world_size}")
        self.info = info
        self.group = socket.create_connection((info.master_address, info.master_port), timeout=20)
        self.group.sendall(bytes([info.rank_offset]))

    def shutdown(self) -> None:
        if self.group is not None:
            self.group.close()
        self.group = None

    def start(self) -> None:
        if self.started:
            raise Refused(500, "a weight update was started already")
        self.started, self.updates = True, 0

    def update(self, info: UpdateInfo, parameters: dict[str, torch.Tensor]) -> None:
        if self.group is None:
            raise Refused(500, "NCCL weight transfer not initialized.")
        if not self.started:
            raise Refused(500, "no weight update was started")
        for name, dtype, shape in zip(info.names, info.dtype_names, info.shapes, strict=True):
            kind = getattr(torch, dtype)
            count = torch.Size(shape).numel() * kind.itemsize
            data = _received(self.group, count)
            tensor = torch.frombuffer(data, dtype=kind).view(shape)
            with torch.no_grad():
                parameters[name].copy_(tensor)
        self.updates += 1

    def finish(self, version: str | None) -> None:
        if not self.started or not self.updates:
            raise Refused(500, "there is no weight update to finish")
        self.started = False
        self.version = version or self.version


class SendingHalf:
    """What vLLM's trainer engine does, as its documents tell it."""

    made: ClassVar[list] = []

    def __init__(self, module: torch.nn.Module, client) -> None:
        self.module, self.client = module, client
        SendingHalf.made.append(self)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            listening.settimeout(20)
            info = {
                "master_address": "127.0.0.1",
                "master_port": listening.getsockname()[1],
                "rank_offset": 1,
                "world_size": client.world_size,
                "packed": True,
            }
            joining = _Beside(lambda: client.init_weight_transfer_engine(info))
            self.group = [listening.accept()[0] for _ in client.servers]
            self.ranks = sorted(one.recv(1)[0] for one in self.group)
            joining.join()

    def send_weights(self) -> None:
        named = list(self.module.named_parameters())
        info = {
            "names": [name for name, _ in named],
            "dtype_names": [str(one.dtype).removeprefix("torch.") for _, one in named],
            "shapes": [list(one.shape) for _, one in named],
        }
        self.client.start_weight_update()
        receiving = _Beside(lambda: self.client.update_weights(info))
        for _, parameter in named:
            data = parameter.detach().contiguous().numpy().tobytes()
            for one in self.group:
                one.sendall(data)
        receiving.join()
        self.client.finish_weight_update()


class _Beside:
    """A call in a thread, whose error is raised when it is joined."""

    def __init__(self, call) -> None:
        self.error: BaseException | None = None

        def run() -> None:
            try:
                call()
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def join(self) -> None:
        self.thread.join(30)
        if self.error is not None:
            raise self.error


def _received(group: socket.socket, count: int) -> bytearray:
    data = bytearray()
    while len(data) < count:
        part = group.recv(count - len(data))
        if not part:
            raise Refused(500, "NCCL error: the peer has closed the connection")
        data += part
    return data
