"""A vLLM server of a `ReplicaPool`, and its weight updates: by an adapter, a folder, or tensors sent to all servers at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

from hud.engine.sample.request import Request
from hud.errors import HudError, UsageError
from hud_integrations.vllm.completion import completion_body
from hud_integrations.vllm.publication import PROBE_TEMPERATURE, PROBE_TOP, Publication, name_of
from hud_integrations.vllm.server import LOAD_SECONDS, Server, ServerLost, ServerRefused
from hud_integrations.vllm.weight_files.sender import Node

FULL_WEIGHTS_API = "VLLM_SERVER_DEV_MODE=1"
"""Environment variable of a server that enables its calls for full weights."""
NO_TRANSFER = "Weight transfer not configured"
"""Beginning of the error (status 500) of a server that was started without a weight transfer."""
SETTLED_SECONDS = 0.05
"""Idle time after which a paused server has sent all sampled tokens, in seconds."""


class Replica:
    """A server of a `ReplicaPool`."""

    def __init__(self, server: Server, node: Node | None = None) -> None:
        self.server = server
        self.node = node
        """The receiver of weights on its host; None: it sees the trainer's folders."""
        self.model = ""
        """The model's name there."""
        self.max_context: int | None = None
        self.has: Publication | None = None
        """The weights that it samples with."""
        self.problem: str | None = "it was not checked yet"
        """Reason why it does not sample; None: it samples."""
        self.refused: Publication | None = None
        """Weights that it could be reached for and did not take: waiting for it changes nothing."""
        self.resting_until = 0.0
        self.active: set[Request] = set()
        self.epoch = 0
        """Number of times its streams were cut; chunks of an older epoch are dropped."""
        self.doubted: set[int] = set()
        """Epochs with other weights than believed: the tokens of their streams are sampled again."""
        self.names_weights = False
        """True: completions may name the weights of their tokens."""
        self.adapters: set[str] = set()
        """Names of the adapters loaded from here."""
        self.changing = asyncio.Lock()
        """Held while its weights change."""

    def break_off(self) -> None:
        """Cut every stream; the sequences continue on any server from the tokens received."""
        self.epoch += 1
        self.server.break_off()

    async def place(self, publication: Publication) -> str:
        """Return the path of the weights' folder there, sent first where the server does not see the trainer's."""
        if self.node is None or publication.files is None:
            return str(publication.folder)
        return (await self.node.place(publication.files)).folder

    async def give(self, publication: Publication) -> None:
        """Load weights and verify them by probes. Raises `HudError` if that fails."""
        async with self.changing:
            if self.has is publication:
                return
            if publication.adapter is None:
                await self._reload(publication)
            else:
                await self._load_adapter(publication.adapter, publication)
            await self._probe(publication)
            self.has = publication

    async def tidy(self, current: Publication | None) -> None:
        """Unload adapters that no turn uses any more."""
        if self.active or self.changing.locked():
            return
        used = {
            publication.adapter for publication in (current, self.has) if publication is not None
        }
        for name in self.adapters - used:
            self.adapters.discard(name)
            with suppress(HudError):
                await self.server.unload_adapter(name)

    async def _reload(self, publication: Publication) -> None:
        folder = await self.place(publication)
        try:
            await self.server.pause()
            await self.server.reload(folder)
        except ServerRefused as error:
            raise _without(error, FULL_WEIGHTS_API) from error
        await self._go_on(publication)

    async def _go_on(self, publication: Publication) -> None:
        """Resume with other weights, and record on each active sequence where they took over."""
        await self._settled()
        self.names_weights = await self.server.name_weights(name_of(publication.version))
        for request in self.active:
            request.swap(publication.version)
        await self.server.resume()

    async def _load_adapter(self, name: str, publication: Publication) -> None:
        folder = await self.place(publication)
        try:
            await self.server.load_adapter(name, folder)
        except ServerRefused as error:
            existing = {card.name for card in await self.server.models()}
            if name not in existing:
                raise _without(
                    error, "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"
                ) from error
            if name not in self.adapters:
                # Left by another process. The engine exits if it reads an evicted adapter again from a folder that is gone.
                await self.server.unload_adapter(name)
                await self.server.load_adapter(name, folder)
        self.adapters.add(name)

    async def _probe(self, publication: Publication) -> None:
        model, salt = publication.adapter or self.model, publication.salt
        options = {"max_tokens": 1, "temperature": PROBE_TEMPERATURE, "logprobs": PROBE_TOP}
        answers = await asyncio.gather(
            *(
                self.server.complete(
                    completion_body(model, probe.prompt, cache_salt=salt, **options)
                )
                for probe in publication.probes
            )
        )
        mistake = publication.mistake(answers)
        if mistake is not None:
            raise UsageError(f"The vLLM server {self.server.url} cannot be used: {mistake}.")

    async def _settled(self) -> None:
        """Wait until all tokens sampled before the pause have arrived."""
        for _ in range(40):
            left = self.server.heard + SETTLED_SECONDS - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(left)


async def send(replicas: Sequence[Replica], publication: Publication) -> None:
    """Send weights to several servers at once, as tensors: all of them receive the weights, or none.

    Raises `HudError`; each server's weights are then unknown.
    """
    transfer = publication.transfer
    assert transfer is not None
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await stack.enter_async_context(replica.changing)
        try:
            await asyncio.gather(*(replica.server.pause() for replica in replicas))
            sizes = await asyncio.gather(*(replica.server.world_size() for replica in replicas))
            servers = [replica.server for replica in replicas]
            await transfer.send(servers, sizes, publication.version)
        except (HudError, TimeoutError) as error:
            for replica in replicas:
                # An unfinished update would block the next.
                with suppress(HudError):
                    await replica.server.transfer("finish_weight_update", None)
            await transfer.release()
            if isinstance(error, ServerRefused):
                raise _without(error, FULL_WEIGHTS_API) from error
            if NO_TRANSFER in str(error):
                raise UsageError(
                    """A vLLM server was started without --weight-transfer-config '{"backend": "nccl"}': start it again with it, """
                    "or let servers load folders."
                ) from error
            if isinstance(error, TimeoutError):
                raise ServerLost(
                    f"The weights did not reach the vLLM servers within {LOAD_SECONDS:.0f} s."
                ) from error
            raise
        await asyncio.gather(*(replica._go_on(publication) for replica in replicas))
        await asyncio.gather(*(replica._probe(publication) for replica in replicas))
        for replica in replicas:
            replica.has = publication


def _without(error: ServerRefused, needed: str) -> UsageError:
    """Return the error for a refused weight call, with the option that enables the API."""
    if error.code not in (404, 405):
        return UsageError(str(error))
    other = ", or train by LoRA (--lora-rank)" if needed == FULL_WEIGHTS_API else ""
    cure = f"The server was started without {needed}: start it again with it{other}."
    return UsageError(f"{str(error).rstrip('.')}. {cure}")
