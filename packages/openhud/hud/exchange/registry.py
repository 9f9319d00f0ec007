"""The registered exports and sources, by name."""

from __future__ import annotations

from hud.exchange.ports import Export, Source
from hud.plugs import load_all

EXPORTS = "hud.exports"
SOURCES = "hud.sources"


def exports() -> dict[str, Export]:
    """Return the formats of `hud export`; raises `UsageError` for one that cannot be imported."""
    return load_all(EXPORTS, Export)


def sources() -> dict[str, Source]:
    """Return the formats of `hud import`; raises `UsageError` for one that cannot be imported."""
    return load_all(SOURCES, Source)
