"""Models on a Tinker service: registration, and policies that are sampled and trained there.

The platform has a row and a folder with tokenizer, chat template and config.json; a checkpoint's folder holds the addresses
of its save on the service.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hud.durable_files import make_folder
from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.policy import Policy
from hud.engine.tinker.sampler import TinkerSampler
from hud.engine.tinker.service import KEY, TinkerService
from hud.engine.tinker.trainer import TinkerTrainer
from hud.engine.tinker.weights import SavedPaths, TinkerWeights
from hud.engine.trainer import Trainer
from hud.errors import PlatformError, UsageError
from hud.platform.models.checkpoint_files import SAMPLER
from hud.platform.models.records import ModelRecord, TinkerConfig
from hud.platform.models.serving_policies import Serving
from hud.platform.models.weight_sources import from_hub, place_companions
from hud.platform.secrets import Secrets
from hud.platform.store.tables import LOCAL_TEAM
from hud.trace import new_id

if TYPE_CHECKING:
    from hud.platform.models.registry import Registry

RANK = 32
"""Rank of the adapters."""


def register_on_tinker(registry: Registry, name: str, tinker: TinkerConfig) -> ModelRecord:
    """Register a base model of a service. Blocks.

    Raises `NotFoundError` for an unknown base model, `UsageError` without the package or the key, `PlatformError` 403 for a team
    other than the first.
    """
    if registry.team != LOCAL_TEAM:
        # The service names a folder of the tokenizer, which is read here.
        raise PlatformError(
            "Models on a Tinker service are for the first team. Ask one of its admins to train there.",
            403,
        )
    service = TinkerService(tinker.url, Secrets(registry.home, registry.team).get(KEY))
    try:
        source = service.tokenizer_of(tinker.base_model)
    finally:
        service.close()
    model_id = new_id()
    folder = registry.home / "models" / model_id / "base"
    try:
        make_folder(folder)
        _copy_companions(source, folder)
        return registry.on_tinker(name, tinker, model_id, folder, RANK)
    except BaseException:
        shutil.rmtree(folder.parent, ignore_errors=True)
        raise


class TinkerServing(Serving):
    """A policy whose weights are on a service."""

    def __init__(
        self,
        model: ModelRecord,
        policy: Policy,
        weights: TinkerWeights,
        find: Callable[[ModelRecord, str | None], SavedPaths | None],
    ) -> None:
        """`find` returns where a checkpoint is on the service."""
        super().__init__(model, policy)
        self._weights, self._find = weights, find

    def open_trainer(self) -> Trainer:
        return TinkerTrainer(self._weights)

    def move(self, model: ModelRecord, checkpoint_id: str | None) -> None:
        with self.lock:
            self._weights.go_to(self._find(model, checkpoint_id))
            self.policy.checkpoint = checkpoint_id


class TinkerModels:
    """Services in use by this process, and the policies of their models."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._services: dict[tuple[str | None, str | None], TinkerService] = {}
        self._lock = threading.Lock()

    def serving(self, model: ModelRecord) -> TinkerServing:
        """Return a model's policy at its head. Blocks."""
        policy, weights = self._opened(model, model.head_checkpoint_id)
        return TinkerServing(model, policy, weights, self.saved)

    def policy(self, model: ModelRecord, checkpoint: str | None) -> Policy:
        """Return a policy at a checkpoint; None: the base model. Blocks."""
        return self._opened(model, checkpoint)[0]

    def _opened(self, model: ModelRecord, checkpoint: str | None) -> tuple[Policy, TinkerWeights]:
        tinker, folder = model.config.tinker, model.folder
        assert tinker is not None
        config = DecoderConfig.from_folder(folder)
        weights = TinkerWeights(
            self._service(model.team_id, tinker.url),
            tinker.base_model,
            config,
            rank=model.config.lora_rank,
            seed=model.config.lora_seed,
        )
        weights.go_to(self.saved(model, checkpoint))
        chat = ChatFormat(folder, config, tool_call_parser=model.config.tool_call_parser)
        policy = Policy(weights, chat, samplers=TinkerSampler(weights, chat, self._finder(model)))
        policy.checkpoint = checkpoint
        return policy, weights

    def saved(self, model: ModelRecord, checkpoint: str | None) -> SavedPaths | None:
        """Return where a checkpoint is on the service; None for the base model. Raises `ConflictError` for a pruned one."""
        if checkpoint is None:
            return None
        tree = self._registry.tree
        return SavedPaths.read(tree.present(tree.get(checkpoint), model) / SAMPLER)

    def close(self) -> None:
        """End the sessions with all services."""
        with self._lock:
            services, self._services = list(self._services.values()), {}
        for one in services:
            one.close()

    def _finder(self, model: ModelRecord) -> Callable[[str | None], SavedPaths | None]:
        def find(version: str | None) -> SavedPaths | None:
            known = version is not None and self._registry.tree.has(version)
            return self.saved(model, version) if known else None

        return find

    def _service(self, team: str, url: str | None) -> TinkerService:
        key = Secrets(self._registry.home, team).get(KEY)
        with self._lock:
            if (url, key) not in self._services:
                self._services[url, key] = TinkerService(url, key)
            return self._services[url, key]


def _copy_companions(source: str, folder: Path) -> None:
    """Copy tokenizer, chat template and config.json from a folder of this machine, or from the hub. Raises `UsageError`."""
    place = Path(source)
    if not place.is_dir():
        place = from_hub(source, weights=False)
    for needed in ("config.json", "tokenizer.json"):
        if not (place / needed).is_file():
            raise UsageError(
                f"{source} holds no {needed}, which sampling on a Tinker service needs here."
            )
    shutil.copyfile(place / "config.json", folder / "config.json")
    place_companions(place, folder)
