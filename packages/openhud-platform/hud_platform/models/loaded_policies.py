"""Policies: the weights that this process has loaded, by model and checkpoint.

A model's serving policy follows its head: moving the head, or a training step, changes the weights in place,
and requests in flight continue with the new ones. A pinned policy stays at its checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict, defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hud.engine.backends.sampling_servers import ServerSampler
from hud.engine.chat.chat_format import ChatFormat
from hud.engine.lora import attach, load_adapter, lora_parameters
from hud.engine.models.precision import computing_type
from hud.engine.models.routing import SampledRoutes
from hud.engine.policy import Policy
from hud.engine.sample.shared_base import SharedBases
from hud.errors import OverloadedError
from hud_platform.models.backend_models import BackendModels
from hud_platform.models.checkpoint_files import SAMPLER
from hud_platform.models.model_export import export_weights
from hud_platform.models.records import BASE, FOLDER, ModelRecord, Weights, missing_files_named
from hud_platform.models.sampling_servers import policy_on_servers
from hud_platform.models.serving_policies import LocalServing, Serving, lora_config, sampler_options

if TYPE_CHECKING:
    from hud.trace import ChatModel
    from hud_platform.models.registry import Registry

log = logging.getLogger("hud.platform")
MOST_PINNED = 2
"""Maximum number of idle pinned policies that stay loaded; the least recently used one is closed first."""
MOST_BUSY_PINNED = 8
"""Maximum number of pinned policies that are sampled from concurrently."""
_LOADERS = 16
"""Threads that load or move models for waiting requests."""


class Policies:
    """The policies that one process has loaded."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._serving: dict[str, Serving] = {}
        self._pinned: OrderedDict[tuple[str, str | None], Policy] = OrderedDict()
        self._bases = SharedBases()
        self._backends = BackendModels(registry)
        self._lock = threading.RLock()
        """Guards the dictionaries; never held during slow work."""
        self._loading: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        """One lock for each model: loading a model never waits for another."""
        self._coming: dict[tuple[str, str | None], Future[Policy]] = {}
        self._loaders = ThreadPoolExecutor(_LOADERS, thread_name_prefix="hud-load")

    async def chat_model(
        self, model: ModelRecord, checkpoint: str | None = None, system_prompt: str | None = None
    ) -> ChatModel:
        """Return a model's policy that follows its head, or one that is pinned to a checkpoint; `system_prompt` replaces its own."""
        return await asyncio.to_thread(self._chat_model, model, checkpoint, system_prompt)

    def serving(self, model: ModelRecord) -> Serving:
        """Return a model's policy at its head, loaded if need be."""
        with self._loading_of(model.id):
            serving = self._serving.get(model.id)
            if serving is None:
                serving = self._serving[model.id] = self._load_serving(model)
                return serving
        with serving.lock:
            serving.policy.revive()
            # Another process may have trained it, or moved its head.
            head = self.registry.model(model.id).head_checkpoint_id
            if serving.policy.checkpoint != head and not self._ahead(serving):
                serving.move(model, head)
        return serving

    def loaded(self, model_id: str) -> Serving | None:
        """Return a model's serving policy if it is loaded."""
        return self._serving.get(model_id)

    def fixed(self, model_id: str) -> AbstractContextManager[object]:
        """Return a context in which no step changes the weights of a model's serving policy, if it is loaded."""
        serving = self._serving.get(model_id)
        return nullcontext() if serving is None else serving.lock

    def change_servers(self, model_id: str, urls: tuple[str, ...]) -> None:
        """Sample a model's loaded policy on other servers, also while it is trained. Blocks."""
        with self._loading_of(model_id):
            serving = self._serving.get(model_id)
            if serving is not None and isinstance(serving.policy.turn_sampler, ServerSampler):
                serving.policy.turn_sampler.change_servers(urls)

    def forget(self, model_id: str) -> None:
        """Unload all policies of a model."""
        with self._loading_of(model_id):
            serving = self._serving.pop(model_id, None)
            if serving is not None:
                serving.policy.close()
            with self._lock:
                keys = [key for key in self._pinned if key[0] == model_id]
                pinned = [self._pinned.pop(key) for key in keys]
            for policy in pinned:
                policy.close()

    def close(self) -> None:
        """Stop every sampler."""
        self._loaders.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            model_ids = {*self._serving, *(key[0] for key in self._pinned)}
        for model_id in model_ids:
            self.forget(model_id)
        self._backends.close()

    def export(
        self,
        model: ModelRecord,
        checkpoint_id: str | None,
        folder: Path,
        *,
        form: str = FOLDER,
        dtype: str | None = None,
    ) -> None:
        """Write a model at a checkpoint to a folder; see `export_weights`."""
        weights = self._verified(model, checkpoint_id)
        export_weights(weights, folder, model.slug, base=model.folder, form=form, dtype=dtype)

    def _verified(self, model: ModelRecord, checkpoint_id: str | None) -> Weights:
        """Return the files of a policy, after comparing them with their recorded hashes."""
        if checkpoint_id is not None:
            self.registry.tree.verify(self.registry.tree.get(checkpoint_id), model, only=SAMPLER)
        return self.registry.weights(model, checkpoint_id)

    def _ahead(self, serving: Serving) -> bool:
        """True if the weights include steps that are not in a checkpoint yet (`save=False`)."""
        version = serving.policy.checkpoint
        return version is not None and not self.registry.tree.has(version)

    def policy(self, model: ModelRecord, checkpoint: str | None) -> Policy:
        """Return a model's policy at its head (`checkpoint` None), or pinned; loaded if need be. Blocks.

        `BASE` pins the model's base weights.
        """
        if checkpoint is None:
            return self.serving(model).policy
        return self._pin(model, None if checkpoint == BASE else checkpoint)

    def at_hand(self, model: ModelRecord, checkpoint: str | None) -> Policy | None:
        """Return the policy if it is loaded and at the right checkpoint, else None. Does not block."""
        if checkpoint is not None:
            key = (model.id, None if checkpoint == BASE else checkpoint)
            pinned = self._pinned.get(key)
            return None if pinned is None or pinned.closed else pinned
        serving = self._serving.get(model.id)
        if serving is None or serving.policy.checkpoint != model.head_checkpoint_id:
            return None
        return None if serving.policy.closed else serving.policy

    def bring(self, model: ModelRecord, checkpoint: str | None) -> Future[Policy]:
        """Return the policy, loaded or moved if necessary; concurrent calls share one load."""
        key = (model.id, checkpoint)
        with self._lock:
            coming = self._coming.get(key)
            if coming is None:
                coming = self._loaders.submit(self._brought, key, model, checkpoint)
                self._coming[key] = coming
            return coming

    def _brought(
        self, key: tuple[str, str | None], model: ModelRecord, checkpoint: str | None
    ) -> Policy:
        try:
            return self.policy(model, checkpoint)
        finally:
            with self._lock:
                del self._coming[key]

    def status(self) -> list[dict[str, Any]]:
        """Return the loaded policies with their load."""
        loaded = [(serving.model_id, serving.policy) for serving in self._serving.values()]
        loaded += [(key[0], policy) for key, policy in self._pinned.items()]
        return [
            {
                "model_id": model_id,
                "checkpoint": policy.checkpoint,
                "active": policy.turns - policy.queue_length(),
                "waiting": policy.queue_length(),
                "cache": None if policy.cache is None else asdict(policy.cache),
            }
            for model_id, policy in loaded
        ]

    def _chat_model(
        self, model: ModelRecord, checkpoint: str | None, system_prompt: str | None
    ) -> ChatModel:
        if checkpoint is None or checkpoint == "head":
            return self.serving(model).policy.chat_model(model.slug, system_prompt)
        pinned = self._pin(model, self.registry.tree.find(model, checkpoint))
        return pinned.chat_model(model.slug, system_prompt)

    def _pin(self, model: ModelRecord, checkpoint_id: str | None) -> Policy:
        key = (model.id, checkpoint_id)
        with self._loading_of(model.id):
            policy = self._pinned.get(key)
            if policy is None or policy.closed:
                self._make_room()
                policy = self._load(model, checkpoint_id)[0]
            with self._lock:
                self._pinned[key] = policy
                self._pinned.move_to_end(key)
            return policy

    def _make_room(self) -> None:
        """Close idle pinned policies beyond `MOST_PINNED`; policies in use are never closed."""
        with self._lock:
            idle = [key for key, policy in self._pinned.items() if not policy.turns]
            count = max(0, len(self._pinned) - MOST_PINNED + 1)
            gone = [self._pinned.pop(key) for key in idle[:count]]
            if len(self._pinned) >= MOST_BUSY_PINNED:
                raise OverloadedError(
                    f"{len(self._pinned)} checkpoints are already being sampled from, which is the most; try again in a moment."
                )
        for policy in gone:
            policy.close()

    def _loading_of(self, model_id: str) -> threading.RLock:
        with self._lock:
            return self._loading[model_id]

    def _load_serving(self, model: ModelRecord) -> Serving:
        model = self.registry.model(model.id)
        if model.config.backend is not None:
            return self._backends.serving(model)
        policy, fresh = self._load(model, model.head_checkpoint_id, on_servers=True)
        return LocalServing(model, policy, fresh, self._verified, self.registry.tree.system_prompt)

    def _load(
        self, model: ModelRecord, checkpoint_id: str | None, *, on_servers: bool = False
    ) -> tuple[Policy, dict[str, torch.Tensor]]:
        """Load a policy and, for one with an adapter, the initial adapter before any step.

        With `on_servers`, a model that has servers is sampled there; servers hold one version of it.
        """
        if model.config.backend is not None:
            return self._backends.policy(model, checkpoint_id), {}
        weights = self._verified(model, checkpoint_id)
        with missing_files_named(model):
            return self._load_weights(model, checkpoint_id, weights, on_servers=on_servers)

    def _load_weights(
        self, model: ModelRecord, checkpoint_id: str | None, weights: Weights, *, on_servers: bool
    ) -> tuple[Policy, dict[str, torch.Tensor]]:
        device = training_device()
        lora = lora_config(model.config)
        parser = model.config.tool_call_parser
        stored = getattr(torch, model.config.dtype)
        dtype = computing_type(stored, device, weights.folder, adapters=lora is not None)
        if on_servers and model.config.servers is not None:
            policy = policy_on_servers(
                self.registry, model, weights.folder, lora, dtype=dtype, device=device
            )
        else:
            fork = None
            if lora is not None:
                fork = self._bases.fork(
                    weights.folder,
                    dtype=dtype,
                    device=device,
                    options=sampler_options(model.config),
                )
            if fork is None:
                policy = Policy.load(
                    weights.folder,
                    dtype=dtype,
                    device=device,
                    sampling=sampler_options(model.config),
                    tool_call_parser=parser,
                )
            else:
                chat = ChatFormat(weights.folder, fork.decoder.config, tool_call_parser=parser)
                policy = Policy(fork.decoder, chat, samplers=fork)
        fresh: dict[str, torch.Tensor] = {}
        if lora is not None:
            attach(policy.decoder, lora)
            named = lora_parameters(policy.decoder)
            fresh = {name: parameter.detach().clone() for name, parameter in named.items()}
            if weights.adapter is not None:
                load_adapter(policy.decoder, weights.adapter)
        if model.config.router_replay:
            policy.decoder.sampled_routes = SampledRoutes()
        policy.checkpoint = checkpoint_id
        policy.system_prompt = self.registry.tree.system_prompt(checkpoint_id)
        if policy.cache is not None:
            log.info("Key-value cache of %s: %s.", model.slug, policy.cache)
        return policy, fresh


def training_device() -> str:
    """Device of policies: the first GPU, or the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"
