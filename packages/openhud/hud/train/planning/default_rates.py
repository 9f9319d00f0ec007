"""Default learning rates, by what is trained: a rate that teaches a tiny model ruins what a pretrained one knows."""

from __future__ import annotations

from typing import Any

from hud.client import Client
from hud.errors import NotFoundError

CREATED_HERE = "preset "
"""Beginning of a model's source if it was created with random weights on this platform; such models are tiny."""
LORA = 1e-4
FULL = 1e-5


async def original(client: Client, model: dict[str, Any]) -> dict[str, Any]:
    """Return a fork with the source of the model at its root; any other model unchanged."""
    root, seen = model, {model["id"]}
    while (base := root.get("base_model_id")) is not None and base not in seen:
        seen.add(base)
        try:
            root = await client.get("/v2/models/resolve", params={"model": base})
        except NotFoundError:
            break  # It was deleted.
    return {**model, "config": {**model["config"], "source": root["config"]["source"]}}


def supervised_rate(model: dict[str, Any]) -> float:
    """Return the rate of supervised training: 1e-3 for tiny models, 1e-4 for adapters, 1e-5 for full fine-tuning."""
    return 1e-3 if is_tiny(model) else _pretrained_rate(model)


def reward_rate(model: dict[str, Any]) -> float:
    """Return the rate of training by reward: 1e-4 for tiny models and adapters, 1e-5 for full fine-tuning."""
    return 1e-4 if is_tiny(model) else _pretrained_rate(model)


def trained_part(model: dict[str, Any]) -> str:
    """Return the phrase for what is trained."""
    if is_tiny(model):
        return "a tiny model"
    return "an adapter" if _has_adapter(model) else "full fine-tuning"


def _pretrained_rate(model: dict[str, Any]) -> float:
    return LORA if _has_adapter(model) else FULL


def is_tiny(model: dict[str, Any]) -> bool:
    """Return True for a model that was created here, from random weights."""
    return str(model["config"]["source"] or "").startswith(CREATED_HERE)


def _has_adapter(model: dict[str, Any]) -> bool:
    return bool(model["config"].get("training") == "lora")
