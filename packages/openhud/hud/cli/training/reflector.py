"""The `--reflector` of a command: an agent whose model reads runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hud.agents import Agent


def reflector_of(name: str | None) -> Agent | None:
    """Return the agent of a slug, an address or `path.py:policy`; None: the model itself reflects."""
    from hud.cli.evaluation.player import player

    return None if name is None else player(None, name, {})
