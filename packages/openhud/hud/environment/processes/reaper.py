"""Supervisor process of a child program: no descendant of the program outlives the run.

    python -I -S reaper.py PARENT_PID [--end-stopped] COMMAND [ARGUMENT...]

It runs the command on its own standard streams and exits with the command's status. After the end of the command, the end
of its parent process (even by SIGKILL) or a time-out after SIGTERM, it kills all descendants of the command: background
processes, other sessions, double forks, since it is the subreaper of all orphans below it. With `--end-stopped` it kills a command that a signal stops (SIGSTOP). Linux only.

It imports a few standard modules only, for a fast start: each run of an environment may start several.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_END_STOPPED = "--end-stopped"
GRACE_SECONDS = 2.0
"""Time for the program to exit after SIGTERM, in seconds; then it is killed."""


def reaped_command(command: list[str], *, end_stopped: bool = False) -> list[str]:
    """Return the command line that runs `command` under a reaper, for a child of this process; `end_stopped`: see above."""
    if sys.platform != "linux":
        return command
    options = [_END_STOPPED] if end_stopped else []
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *options, *command]


def signalled(status: int) -> int:
    """Return a reaper's exit status as `subprocess` gives that of its command: below zero for a signal."""
    return 128 - status if status > 128 else status


class _Asked(Exception):
    """Raised by the handler of termination signals."""


def _ask(number: int, frame: object) -> None:
    del number, frame
    raise _Asked


def main() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    parent, command = int(sys.argv[1]), sys.argv[2:]
    end_stopped = command[0] == _END_STOPPED
    if end_stopped:
        command = command[1:]
    reaper = os.getpid()
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == reaper:
            _become(command)
        os._exit(127)
    status = 0
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, _ask)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            raise _Asked  # The parent died before PR_SET_PDEATHSIG was set.
        _let_go_of_pipes()
        status = _wait(child, os.WUNTRACED if end_stopped else 0)
    except _Asked:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        status = _end(child)
    _kill_the_rest()
    os._exit(status)


def _become(command: list[str]) -> None:
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())


def _let_go_of_pipes() -> None:
    """Close this process's standard input and output, so that the program's exit closes the pipes."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)


def _wait(child: int, options: int) -> int:
    while True:
        pid, status = os.waitpid(-1, options)  # Orphans below this process are its children, too.
        if pid != child:
            continue
        if not os.WIFSTOPPED(status):
            return _code(status)
        kill(child, signal.SIGKILL)


def _end(child: int) -> int:
    kill(child, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if pid == child:
            return _code(status)
        if pid == 0:
            time.sleep(0.005)
    return 128 + signal.SIGKILL


def _kill_the_rest() -> None:
    """Kill all descendants, repeatedly, until none is left."""
    while True:
        for pid in children():
            kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


def children() -> list[int]:
    """Return this process's children, adopted ones included."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:  # A kernel without /proc/.../children.
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _is_ours(name)]


def _is_ours(name: str) -> bool:
    try:
        with open(f"/proc/{name}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1]) == os.getpid()
    except OSError:
        return False


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def kill(pid: int, number: int) -> None:
    """Signal a process, if it exists."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    main()
