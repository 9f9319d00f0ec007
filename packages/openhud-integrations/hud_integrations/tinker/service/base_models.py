"""Base models as Tinker's clients name them: by slug or, where the weights came from the Hugging Face hub, by hub id."""

from __future__ import annotations

import json
from typing import Any

from hud.errors import NotFoundError
from hud_platform.models.records import ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.models.weight_sources import is_hub_id

RUN = ":train:"
"""Part of the name of every model that a training client made."""


def base_named(registry: Registry, name: str) -> ModelRecord:
    """Return the model of a name, or the oldest that was added from this hub id. Raises `NotFoundError`."""
    try:
        return registry.model(name)
    except NotFoundError:
        added = [
            model for model in registry.models() if model.kind == "added" and name_of(model) == name
        ]
        if not added:
            raise
        return added[0]


def base_of(registry: Registry, model: ModelRecord) -> ModelRecord:
    """Return the model at the beginning of a training client's forks; of another model itself."""
    while model.base_model_id is not None and RUN in model.name:
        model = registry.model(model.base_model_id)
    return model


def name_of(model: ModelRecord) -> str:
    """Return a base model's name for clients, which load its tokenizer by it: a hub id, or its slug."""
    source = model.config.source
    return source if model.kind == "added" and source and is_hub_id(source) else model.slug


def tokenizer_of(registry: Registry, model: ModelRecord) -> str:
    """Return the hub id of a model's tokenizer, or its folder on this machine."""
    while model.base_model_id is not None:
        model = registry.model(model.base_model_id)
    name = name_of(model)
    return str(model.folder) if name == model.slug else name


def configuration_of(model: ModelRecord) -> dict[str, Any]:
    """Return a model's config.json; empty if it cannot be read."""
    try:
        configuration: dict[str, Any] = json.loads((model.folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return configuration
