"""The package `ray`, for the modules that need it. Raises `UsageError` on import where it is missing."""

from __future__ import annotations

from hud.errors import UsageError

try:
    import ray
except ImportError as error:
    raise UsageError(
        "hud fleet ray needs Ray, in the cluster's own version: pip install 'openhud[ray]'"
    ) from error

__all__ = ["ray"]
