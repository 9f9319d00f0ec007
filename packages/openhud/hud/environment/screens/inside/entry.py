"""First program in a sandbox: joins its control groups, starts the sandbox's program, and serves the process outside.

    python entry.py CONTROL GROUPS PROGRAM [ARGUMENT...]

`GROUPS` are descriptors of control groups' entrances, separated by commas. On the socket `CONTROL`, a packet
`{"address", "port"}` requests a listening socket, and `{"folder"}` a folder; the descriptor is sent back. Connections are
accepted outside. It exits with the program's status, which ends the sandbox. Without a socket the program takes its place.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from typing import Any

PACKET_BYTES = 1 << 12


def join(descriptors: list[int]) -> None:
    """Join control groups: a single thread that moves itself waits for no grace period of the kernel."""
    for descriptor in descriptors:
        os.write(descriptor, b"0")
        os.close(descriptor)


def opened(request: dict[str, Any]) -> int:
    """Return the descriptor that a request is for."""
    if "folder" in request:
        return os.open(request["folder"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((request["address"], request["port"]))
        listener.listen(64)
        return listener.detach()


def hear(control: socket.socket) -> bool:
    """Answer one packet; False at the end of the socket."""
    request = control.recv(PACKET_BYTES)
    if not request:
        return False
    try:
        descriptor = opened(json.loads(request))
        socket.send_fds(control, [b"{}"], [descriptor])
        os.close(descriptor)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        control.send(json.dumps({"refused": str(error)}).encode())
    return True


def main() -> int:
    """Serve requests, and return the program's exit status."""
    number, groups, *command = sys.argv[1:]
    join([int(group) for group in groups.split(",") if group])
    if not number:
        os.execv(command[0], command)
    control = socket.socket(fileno=int(number))
    control.set_inheritable(False)
    wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    program = os.fork()
    if program == 0:
        try:
            os.execv(command[0], command)
        finally:
            os._exit(127)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # The program's exit must close its pipes.
        os.dup2(nothing, stream)
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
