"""First program in a sandbox with its own network: starts the sandbox's program, and listens on its loopback.

    python entry.py CONTROL PROGRAM [ARGUMENT...]

A packet `{"address", "port"}` on the socket CONTROL requests a listening socket, whose descriptor is sent back:
connections are accepted outside. It exits with the program's status, which ends the sandbox.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys

PACKET_BYTES = 1 << 12


def listen(request: bytes) -> socket.socket:
    """Return a socket listening at the packet's address."""
    wanted = json.loads(request)
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((wanted["address"], wanted["port"]))
        listener.listen(64)
    except BaseException:
        listener.close()
        raise
    return listener


def hear(control: socket.socket) -> bool:
    """Answer one packet; False at the end of the socket."""
    request = control.recv(PACKET_BYTES)
    if not request:
        return False
    try:
        with listen(request) as listener:
            socket.send_fds(control, [b"{}"], [listener.fileno()])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        control.send(json.dumps({"refused": str(error)}).encode())
    return True


def main() -> int:
    """Serve requests, and return the program's exit status."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    program = os.fork()
    if program == 0:
        try:
            os.execv(sys.argv[2], sys.argv[2:])
        finally:
            os._exit(127)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # The program's exit must close its pipes.
    os.dup2(nothing, 1)
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(wake, select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == wake:
                os.read(wake, 4096)
            elif not hear(control):
                return 0
        ended, status = os.waitpid(program, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
