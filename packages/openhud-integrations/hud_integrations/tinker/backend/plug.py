"""The entry point `tinker` of `hud.trainers`: `hud train BASE_MODEL TASKS --backend tinker`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hud.engine.backends.backend import Backend, Connection, OfferedModel, Secret

if TYPE_CHECKING:
    from hud.train.config import TrainConfig

RANK = 32
"""Rank of the adapters."""
_TERMS = ("kl_coef", "kl_advantage_coef", "entropy_coef")
"""Keys of losses that need more of a model than logprobs of its tokens."""


class TinkerBackend(Backend):
    """Adapters on base models of a Tinker service (`TINKER_BASE_URL`, `TINKER_API_KEY`)."""

    def settings(self, base_model: str, environment: Mapping[str, str]) -> dict[str, Any]:
        return {"base_model": base_model, "url": environment.get("TINKER_BASE_URL") or None}

    def refusal(self, config: TrainConfig) -> str | None:
        terms = [name for name, value in config.loss_config.items() if value and name in _TERMS]
        refused = {
            "temperature other than 1": config.temperature != 1.0,
            "swap='in_flight' with max_lag (set swap='finish')": config.updates_in_flight,
            "optimizer='muon'": config.optimizer != "adamw",
            "promote='gate', which forks the model": config.promote == "gate",
            f"{', '.join(terms)} in loss_config": bool(terms),
        }
        return next((what for what, applies in refused.items() if applies), None)

    def offered(self, settings: Mapping[str, Any], secret: Secret) -> OfferedModel:
        from hud_integrations.tinker.backend.connection import KEY, TinkerService
        from hud_integrations.tinker.backend.models import read_settings

        wanted = read_settings(settings)
        service = TinkerService(wanted.url, secret(KEY))
        try:
            tokenizer = service.tokenizer_of(wanted.base_model)
        finally:
            service.close()
        return OfferedModel(wanted.base_model, tokenizer, RANK)

    def connect(self) -> Connection:
        from hud_integrations.tinker.backend.models import TinkerConnection

        return TinkerConnection()


backend = TinkerBackend()
