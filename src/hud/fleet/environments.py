"""Deployed environments: kept warm, one server for each build that forks itself for each rollout; or served alone."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hud.errors import EnvironmentFault
from hud.eval.runtimes.fork import ForkRuntime
from hud.eval.runtimes.interpreter import Interpreter
from hud.eval.runtimes.served import ServedProcess
from hud.fleet.docker import READY_SECONDS, ImageRuntime, container

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
            interpreter = apart(Path(environment["python"]), environment["variables"])
            self._runtimes[build_id] = ForkRuntime(environment["source"], interpreter=interpreter)
        self._runtimes.move_to_end(build_id)
        return self._runtimes[build_id]

    async def close(self) -> None:
        """Stop every server, and whatever it forked."""
        for runtime in self._runtimes.values():
            await runtime.aclose()
        self._runtimes.clear()


def apart(python: Path, variables: Mapping[str, str]) -> Interpreter:
    """Return an interpreter that sees an environment's variables and none of this process's own secrets."""
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return Interpreter(python, {**passed, **variables})


@asynccontextmanager
async def served(
    source: Path, python: Path, variables: Mapping[str, str], image: str | None
) -> AsyncIterator[tuple[str, int]]:
    """A deployed environment on a port of this machine, for as long as the block lasts."""
    if image is not None:
        async with container(image, variables) as (_, url):
            place = urlsplit(url)
            yield place.hostname or "127.0.0.1", place.port or 0
        return
    process = await ServedProcess.start(str(source), apart(python, variables))
    try:
        yield "127.0.0.1", await process.port(READY_SECONDS)
    finally:
        await process.end()
