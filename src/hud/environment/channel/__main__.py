"""`python -m hud.environment.channel SOURCE [--host H] [--port P]`: serve an environment.

Ends when its standard input does, so that it does not outlive the process that started it with a pipe there.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading

from hud.environment.channel.server import ControlServer
from hud.environment.loading import load_environment
from hud.errors import HudError


def main() -> int:
    """Serve until the standard input ends, where it is a pipe."""
    parser = argparse.ArgumentParser(prog="hud.environment.channel")
    parser.add_argument("source")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--follow-stdin", action="store_true")
    options = parser.parse_args()
    try:
        environment = load_environment(options.source)
    except HudError as error:
        print(error, file=sys.stderr)
        return 2
    if options.follow_stdin:
        threading.Thread(target=_exit_with_stdin, daemon=True).start()
    asyncio.run(ControlServer(environment).serve(options.host, options.port))
    return 0


def _exit_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
