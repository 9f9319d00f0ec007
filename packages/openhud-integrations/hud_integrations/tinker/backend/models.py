"""Open models of Tinker services. A checkpoint's folder holds the addresses of its save on the service."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic

from hud.engine.backends.backend import BackendModel, Connection, OpenModel
from hud.engine.chat.chat_format import ChatFormat
from hud.engine.config import DecoderConfig
from hud.engine.learn.scoring import check_servable, with_listed
from hud.engine.policy import Policy
from hud.engine.trainer import Trainer
from hud.errors import UsageError
from hud.learning.datums import Datum
from hud_integrations.tinker.backend.connection import KEY, TinkerService
from hud_integrations.tinker.backend.sampler import TinkerSampler
from hud_integrations.tinker.backend.trainer import TinkerTrainer
from hud_integrations.tinker.backend.weights import SavedPaths, TinkerWeights


class Settings(pydantic.BaseModel, extra="forbid"):
    """Base model of a service."""

    base_model: str
    url: str | None = pydantic.Field(default=None, pattern=r"^https?://[^\s@?#]+$")
    """Address of the service; None: that of Thinking Machines."""


def read_settings(settings: Mapping[str, Any]) -> Settings:
    """Return a model's settings. Raises `UsageError` for others."""
    try:
        return Settings.model_validate(settings)
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise UsageError(f"The settings of backend 'tinker', {place}: {problem['msg']}") from None


class TinkerConnection(Connection):
    """Services in use by this process, one session for each address and key."""

    def __init__(self) -> None:
        self._services: dict[tuple[str | None, str | None], TinkerService] = {}
        self._lock = threading.Lock()

    def open(self, model: BackendModel) -> OpenModel:
        settings = read_settings(model.settings)
        return _OpenModel(
            model, settings.base_model, self._service(settings.url, model.secret(KEY))
        )

    def close(self) -> None:
        with self._lock:
            services, self._services = list(self._services.values()), {}
        for service in services:
            service.close()

    def _service(self, url: str | None, key: str | None) -> TinkerService:
        with self._lock:
            if (url, key) not in self._services:
                self._services[url, key] = TinkerService(url, key)
            return self._services[url, key]


class _OpenModel(OpenModel):
    def __init__(self, model: BackendModel, base_model: str, service: TinkerService) -> None:
        config = DecoderConfig.from_folder(model.folder)
        rank, seed = model.lora_rank, model.seed
        self._weights = TinkerWeights(service, base_model, config, rank=rank, seed=seed)
        chat = ChatFormat(model.folder, config, tool_call_parser=model.tool_call_parser)

        def find(version: str | None) -> SavedPaths | None:
            return _paths(model.saved(version))

        self._sampler = TinkerSampler(self._weights, chat, find)
        self.policy = Policy(self._weights, chat, samplers=self._sampler)

    def go_to(self, saved: Path | None) -> None:
        self._weights.go_to(_paths(saved))

    def open_trainer(self) -> Trainer:
        return TinkerTrainer(self._weights)

    def score(self, datums: Sequence[Datum], top: int) -> list[Datum]:
        check_servable(datums, self._weights.base_model)
        rows = self._sampler.listed([datum.tokens.tolist() for datum in datums], top)
        return [with_listed(datum, row, top) for datum, row in zip(datums, rows, strict=True)]


def _paths(saved: Path | None) -> SavedPaths | None:
    return None if saved is None else SavedPaths.read(saved)
