"""`HealthCheck`: a command that succeeds once a container's services are ready."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hud.errors import EnvironmentFault
from hud.graders.command import CommandOutcome

_INTERVAL_SECONDS, _TIMEOUT_SECONDS, _RETRIES = 30.0, 30.0, 3
"""Defaults of a Dockerfile's `HEALTHCHECK`."""
_PAUSE_SECONDS = 0.5
_NANOSECONDS = 1e9


@dataclass(frozen=True)
class HealthCheck:
    """A check that is repeated until it succeeds: healthy at the first success."""

    argv: Sequence[str]
    seconds: float
    """Time after which the container is unhealthy."""
    timeout_seconds: float = _TIMEOUT_SECONDS
    """Time-out of each attempt."""

    async def wait(self, run: Callable[[Sequence[str], float], Awaitable[CommandOutcome]]) -> None:
        """Return once `run(argv, timeout)` has exit code 0. Raises `EnvironmentFault` with its last line if it never has."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.seconds
        while True:
            outcome = await run(self.argv, self.timeout_seconds)
            if outcome.exit_code == 0:
                return
            if loop.time() >= deadline:
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        lines = f"{outcome.stdout}\n{outcome.stderr}".split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        status = "no end" if outcome.exit_code is None else f"status {outcome.exit_code}"
        raise EnvironmentFault(f"It was not healthy within {self.seconds:g} s: its health check had {status}: {last}")  # fmt: skip


def parse_health_check(document: Mapping[str, Any] | None) -> HealthCheck | None:
    """Return the check of an image's or a container's `Healthcheck`, whose times are in nanoseconds; None without one."""
    test = list((document or {}).get("Test") or ())
    if test[:1] == ["CMD-SHELL"] and len(test) == 2:
        argv = ["/bin/sh", "-c", test[1]]
    elif test[:1] == ["CMD"] and len(test) > 1:
        argv = test[1:]
    else:
        return None
    assert document is not None

    def seconds(name: str, default: float) -> float:
        return float(document.get(name) or 0) / _NANOSECONDS or default

    attempts = seconds("Interval", _INTERVAL_SECONDS) * (document.get("Retries") or _RETRIES)
    return HealthCheck(argv, seconds("StartPeriod", 0.0) + attempts, seconds("Timeout", _TIMEOUT_SECONDS))  # fmt: skip
