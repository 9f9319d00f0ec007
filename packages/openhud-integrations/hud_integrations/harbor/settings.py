"""Settings of a section of `task.toml`, such as `[environment]`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hud.byte_sizes import parse_bytes
from hud.environment.workspace.sandbox.limits import MB
from hud.errors import UsageError
from hud.eval.runtimes.containers.health_check import HealthCheck

_UNITS = ("K", "M", "G")
"""Ends of sizes in the older form of the format; a number alone is none."""


def allowed_hosts(environment: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the hosts that programs may reach: None for all public ones, empty for none."""
    mode = environment.get("network_mode")
    if mode == "no-network" or (mode is None and environment.get("allow_internet") is False):
        return ()
    return tuple(environment.get("allowed_hosts") or ()) if mode == "allowlist" else None


def memory_mb(environment: Mapping[str, Any]) -> float | None:
    """Return its memory, in MB; None without a limit."""
    megabytes = environment.get("memory_mb")
    if megabytes is not None:
        return float(megabytes)
    older = str(environment.get("memory", "")).strip()
    size = parse_bytes(older) if older[-1:].upper() in _UNITS else None
    return None if size is None else size / MB


def literal_variables(section: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a section, without those that name others (`${NAME}`)."""
    declared = section.get("env") or {}
    return {name: str(value) for name, value in declared.items() if "${" not in str(value)}


def read_health_check(section: Mapping[str, Any]) -> HealthCheck | None:
    """Return the check of a section's `healthcheck`, whose defaults are Harbor's. Raises `UsageError` for a malformed one."""
    declared = section.get("healthcheck")
    if declared is None:
        return None
    try:
        interval, timeout, start = (
            float(declared.get(name, default))
            for name, default in (("interval_sec", 5), ("timeout_sec", 30), ("start_period_sec", 0))
        )
        seconds = start + interval * int(declared.get("retries", 3))
        if not (0 <= seconds < math.inf and 0 < timeout < math.inf):
            raise ValueError
        return HealthCheck(["/bin/sh", "-c", str(declared["command"])], seconds, timeout)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise UsageError(
            "A healthcheck of task.toml needs a command; its times are numbers of seconds."
        ) from None
