"""`python -I -S bound_command.py PARENT COMMAND [ARGUMENT...]`: run a command that gets SIGTERM when its parent ends.

Linux only; elsewhere it outlives its parent. It imports a few standard modules only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def bound(command: list[str]) -> list[str]:
    """Return the command line for a child of the calling thread, which must live as long."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)  # It ended before it could be followed.
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
