"""Listening sockets of commands that serve: bound before an address is announced."""

from __future__ import annotations

import errno
import os
import socket

from hud.errors import UsageError


def listen(host: str, port: int, *, backlog: int = 100) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.

    Raises `UsageError` for an address that is in use, not of this machine, or empty: that would let every machine in.
    """
    if not host:
        raise UsageError("--host is empty. Name an address of this machine, such as 127.0.0.1.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=backlog)
    except UnicodeError:
        reason, cure = "this is no name of a machine", "Choose another --host."
    except OSError as error:
        # Python's own text repeats the address.
        numbered = error.errno is not None and error.errno > 0
        reason = os.strerror(error.errno or 0) if numbered else str(error.strerror)
        of_port = error.errno in (errno.EADDRINUSE, errno.EACCES)
        cure = "Choose another --port, or 0 for any." if of_port else "Choose another --host."
    raise UsageError(f"{host}:{port} cannot be listened on: {reason}. {cure}")
