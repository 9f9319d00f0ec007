"""Models of training backends: registration, and policies that are sampled and trained there.

The platform has a row, and a folder with tokenizer, chat template and config.json; a checkpoint's folder holds what the backend's
trainer wrote.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hud.durable_files import make_folder
from hud.engine.backends.backend import BackendModel, Connection, OpenModel
from hud.engine.backends.registered import backend_named
from hud.engine.policy import Policy
from hud.engine.trainer import Trainer
from hud.errors import PlatformError, UsageError
from hud.learning.datums import Datum
from hud.trace import new_id
from hud_platform.access.secrets import Secrets
from hud_platform.models.checkpoint_files import SAMPLER
from hud_platform.models.records import BackendConfig, ModelRecord
from hud_platform.models.serving_policies import Serving
from hud_platform.models.weight_sources import from_hub, place_companions
from hud_platform.store.tables import LOCAL_TEAM

if TYPE_CHECKING:
    from hud_platform.models.registry import Registry


def register_on_backend(registry: Registry, name: str, config: BackendConfig) -> ModelRecord:
    """Register a base model of a backend. Blocks.

    Raises `UsageError` for an unknown backend, `PlatformError` 403 for a team other than the first, and the errors of
    `Backend.offered`.
    """
    if registry.team != LOCAL_TEAM:
        # The backend names a folder of the tokenizer, which is read here.
        raise PlatformError(
            "Models of training backends are for the first team. Ask one of its admins to train there.",
            403,
        )
    secret = Secrets(registry.home, registry.team).get
    base = backend_named(config.name).offered(config.settings, secret)
    model_id = new_id()
    folder = registry.home / "models" / model_id / "base"
    try:
        make_folder(folder)
        _copy_companions(base.tokenizer, folder)
        return registry.on_backend(name, config, base, model_id, folder)
    except BaseException:
        shutil.rmtree(folder.parent, ignore_errors=True)
        raise


class BackendServing(Serving):
    """A policy whose weights are at a backend."""

    def __init__(self, model: ModelRecord, open_model: OpenModel, models: BackendModels) -> None:
        super().__init__(model, open_model.policy)
        self._open, self._models = open_model, models

    def open_trainer(self) -> Trainer:
        return self._open.open_trainer()

    def warm_up(self, trainer: Trainer) -> None:
        """Do nothing: the backend computes."""

    def score(self, datums: Sequence[Datum], top: int) -> list[Datum]:
        return self._open.score(datums, top)

    def stepped(self, measured: Mapping[str, float]) -> None:
        """Do nothing: the cache is the backend's."""

    def move(self, model: ModelRecord, checkpoint_id: str | None) -> None:
        saved = self._models.saved(model, checkpoint_id)
        with self.lock, self.policy.exclusive():
            self._open.go_to(saved)
            self.policy.checkpoint = checkpoint_id
            self.policy.system_prompt = self._models.prompt_of(checkpoint_id)


class BackendModels:
    """Connections of this process to backends, and the policies of their models."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._connections: dict[str, Connection] = {}
        self._lock = threading.Lock()

    def serving(self, model: ModelRecord) -> BackendServing:
        """Return a model's policy at its head. Blocks."""
        return BackendServing(model, self._opened(model, model.head_checkpoint_id), self)

    def policy(self, model: ModelRecord, checkpoint: str | None) -> Policy:
        """Return a policy at a checkpoint; None: the base model. Blocks."""
        return self._opened(model, checkpoint).policy

    def saved(self, model: ModelRecord, checkpoint: str | None) -> Path | None:
        """Return the folder that the backend wrote for a checkpoint; None for the base model. Raises `ConflictError` for a pruned one."""
        if checkpoint is None:
            return None
        tree = self._registry.tree
        sampler = tree.present(tree.get(checkpoint), model) / SAMPLER
        return sampler if sampler.is_dir() else None

    def prompt_of(self, checkpoint: str | None) -> str | None:
        """Return the system prompt of a checkpoint."""
        return self._registry.tree.system_prompt(checkpoint)

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()

    def _opened(self, model: ModelRecord, checkpoint: str | None) -> OpenModel:
        config = model.config.backend
        assert config is not None

        def saved(version: str | None) -> Path | None:
            # Steps that no checkpoint holds yet have a version, too.
            in_tree = version is not None and self._registry.tree.has(version)
            return self.saved(model, version) if in_tree else None

        opened = self._connection(config.name).open(
            BackendModel(
                settings=config.settings,
                folder=model.folder,
                lora_rank=model.config.lora_rank,
                seed=model.config.lora_seed,
                tool_call_parser=model.config.tool_call_parser,
                secret=Secrets(self._registry.home, model.team_id).get,
                saved=saved,
            )
        )
        opened.go_to(self.saved(model, checkpoint))
        opened.policy.checkpoint = checkpoint
        opened.policy.system_prompt = self.prompt_of(checkpoint)
        return opened

    def _connection(self, backend: str) -> Connection:
        with self._lock:
            if backend not in self._connections:
                self._connections[backend] = backend_named(backend).connect()
            return self._connections[backend]


def _copy_companions(source: str, folder: Path) -> None:
    """Copy tokenizer, chat template and config.json from a folder of this machine, or from the hub. Raises `UsageError`."""
    place = Path(source)
    if not place.is_dir():
        place = from_hub(source, weights=False)
    for needed in ("config.json", "tokenizer.json"):
        if not (place / needed).is_file():
            raise UsageError(f"{source} holds no {needed}, which sampling at a backend needs here.")
    shutil.copyfile(place / "config.json", folder / "config.json")
    place_companions(place, folder)
