"""`python -m hud.environment.channel SOURCE [--host H] [--port P]`: serve an environment.

With `--follow-stdin` it ends at the end of its standard input, so that it does not outlive the process that holds the
other end of the pipe. With `--one-run` it serves one run: what the run's tools leave running ends before the grade.
Exit status 2: the environment could not be loaded; the reason is on standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading

from hud.environment.channel.server.control_server import ControlServer
from hud.environment.processes.run_processes import adopt_orphans
from hud.environment.processes.secret_variables import withhold_secrets
from hud.environment.sources.loader import load_environment
from hud.errors import HudError
from hud.processes.listening import listen


def main() -> int:
    parser = argparse.ArgumentParser(prog="hud.environment.channel")
    parser.add_argument("source")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--follow-stdin", action="store_true")
    parser.add_argument("--one-run", action="store_true")
    options = parser.parse_args()
    if options.follow_stdin:
        _follow_stdin()
    if options.one_run:
        adopt_orphans()
    withhold_secrets()
    try:
        environment = load_environment(options.source)
        listening = listen(options.host, options.port)
    except HudError as error:
        print(error, file=sys.stderr)
        return 2
    server = ControlServer(environment, one_run=options.one_run)
    asyncio.run(server.serve(listening))
    return 0


def _follow_stdin() -> None:
    followed = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # The environment's code must not read from the pipe.
    os.close(nothing)

    def wait() -> None:
        while os.read(followed, 4096):
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
