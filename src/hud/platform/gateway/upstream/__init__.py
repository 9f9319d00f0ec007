"""Providers' models asked in another dialect than their own: neutral requests out, neutral events in."""

from hud.platform.gateway.upstream.turns import UpstreamTurns

__all__ = ["UpstreamTurns"]
