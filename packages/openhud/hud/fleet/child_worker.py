"""`python -m hud.fleet.child_worker URL [options]`: `hud fleet join` as the child of another program.

The pass is HUD_API_KEY. It hands everything back, and ends, when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from pathlib import Path

from hud import settings
from hud.errors import HudError, PlatformError
from hud.fleet.joining import join

REFUSED = 2
"""Exit code where the platform refuses the pass."""


def _say(line: str) -> None:
    # The reader may be gone; what is played is handed back nevertheless.
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)


def main() -> int:
    """Join, and play until a signal or the end of standard input."""
    parser = argparse.ArgumentParser(prog="hud.fleet.child_worker")
    parser.add_argument("url")
    parser.add_argument("--rollouts", type=int, required=True)
    parser.add_argument("--notice", type=float, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--label", dest="labels", action="append", default=[])
    parser.add_argument("--images", action="store_true")
    options, now = parser.parse_args(), settings.load()
    work = join(
        options.url,
        now.api_key or "",
        rollouts=options.rollouts,
        cache=options.cache or now.home / "fleet",
        name=options.name,
        labels=dict(label.split("=", 1) for label in options.labels),
        images=options.images,
        notice=options.notice,
        say=_say,
        with_parent=True,
    )
    try:
        asyncio.run(work)
    except HudError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        refused = isinstance(error, PlatformError) and error.status in (401, 403)
        return REFUSED if refused else 1
    return 0


if __name__ == "__main__":
    code = main()
    # A last flush into a pipe that nobody reads would fail.
    os._exit(code)
