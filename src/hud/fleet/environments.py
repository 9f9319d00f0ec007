"""Environments that are kept warm: one server for each build, which forks itself for each rollout."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hud.errors import EnvironmentFault
from hud.eval.runtimes.fork import ForkRuntime
from hud.eval.runtimes.interpreter import Interpreter
from hud.fleet.docker import ImageRuntime

if TYPE_CHECKING:
    from hud.eval.rollouts import Provider

MOST_WARM = 8
"""Builds that stay warm; the one used longest ago makes room."""
_PASSED = ("PATH", "LANG", "TMPDIR", "HOME", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")


class WarmEnvironments:
    """The warm servers of one worker."""

    def __init__(self) -> None:
        self._runtimes: OrderedDict[str, ForkRuntime] = OrderedDict()

    def provider(self, given: dict[str, Any]) -> Provider:
        """Return what brings up the environment of a rollout."""
        if given["problem"] is not None:
            raise EnvironmentFault(given["problem"])
        environment = given["environment"]
        if environment["image"] is not None:
            return ImageRuntime(environment["image"], environment["variables"])
        build_id = environment["build_id"]
        if build_id not in self._runtimes:
            # None of this process's own variables: it holds the platform's pass.
            passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
            interpreter = Interpreter(
                Path(environment["python"]), {**passed, **environment["variables"]}
            )
            self._runtimes[build_id] = ForkRuntime(environment["source"], interpreter=interpreter)
        self._runtimes.move_to_end(build_id)
        return self._runtimes[build_id]

    async def close(self) -> None:
        """Stop every server, and whatever it forked."""
        for runtime in self._runtimes.values():
            await runtime.aclose()
        self._runtimes.clear()
