"""Lineage of models: those whose training is in their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from hud_platform.models.card_values import card_value
from hud_platform.models.records import PROMOTION, ModelRecord

if TYPE_CHECKING:
    from hud_platform.models.registry import Registry

LINEAGE = "openhud_models"
"""Key of a card's front matter: the lineage of the model, slugs by id."""


def lineage_of(registry: Registry, *models: ModelRecord) -> dict[str, str]:
    """Return the slugs of models, of those that they are forks or exports of, and of those whose checkpoints became theirs,
    by id. Models that are deleted have trained, too.
    """
    by_id = {record.id: record for record in registry.models()}
    by_slug = {record.slug: record for record in by_id.values()}
    slugs: dict[str, str] = {}
    ahead: list[ModelRecord | None] = list(models)
    while ahead:
        record = ahead.pop()
        if record is None or record.id in slugs:
            continue
        slugs[record.id] = record.slug
        ahead.append(by_id.get(record.base_model_id or ""))
        earlier = dict(record.config.lineage)
        for node in registry.tree.nodes(record):
            if (promoted := node.metrics.get(PROMOTION)) is not None:
                origin = promoted["from"]
                ahead.append(by_slug.get(origin["model"]))
                earlier |= origin.get("lineage") or {origin["model"]: origin["model"]}
        ahead += [by_id[key] for key in earlier if key in by_id]
        slugs |= {key: slug for key, slug in earlier.items() if key not in by_id}
    return slugs


def exported_lineage(folder: Path) -> dict[str, str]:
    """Return the lineage that the card in a folder names: the folder's model, or that of a file in it, was exported by OpenHUD."""
    try:
        slugs = json.loads(card_value(folder, LINEAGE) or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(slugs, dict):
        return {}
    return {key: slug for key, slug in slugs.items() if isinstance(slug, str)}
