"""Settings of a model's vLLM servers: addresses, credentials and time-outs."""

from __future__ import annotations

from dataclasses import dataclass, field

from hud.outbound import Reach


@dataclass(frozen=True)
class Patience:
    """Time-outs and intervals, in seconds."""

    look: float = 5.0
    """Interval of health checks of each server."""
    health: float = 10.0
    """Time-out of a health check."""
    server: float = 120.0
    """Time-out of a sequence without a server."""
    silence: float = 900.0
    """Time without tokens after which a server with active sequences counts as lost."""
    drain: float = 1800.0
    """Time-out of turns with old weights, before new weights are loaded."""


@dataclass(frozen=True)
class Servers:
    """Addresses and credentials of a model's vLLM servers."""

    urls: tuple[str, ...]
    key: str | None = None
    """Their `Authorization: Bearer` token."""
    patience: Patience = field(default_factory=Patience)
    receiver_port: int | None = None
    """Port of the receiver of weights on each server's host; None: servers see the trainer's folders."""
    reach: Reach = field(default_factory=lambda: Reach(private=True))
    """Allowed addresses."""
