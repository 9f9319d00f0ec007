"""Process 1 of a workspace: starts processes for the server, reaps them, and ends the sandbox.

It communicates with the server outside over a socket: packets of fields separated by zero bytes, with descriptors. As
process 1 it cannot be killed or stopped from inside; as it is not dumpable, its memory cannot be read either. Processes
inside are untrusted.

    in   spawn NUMBER GROUP_ENDS ROWS COLUMNS FOLDER WORDS WORD... NAME=VALUE...     with three descriptors, or a terminal
         kill_all NUMBER;  listen NUMBER ADDRESS PORT;  dial NUMBER PORT;  signal "" PROCESS SIGNAL
    out  up; done NUMBER; refused NUMBER REASON; ended NUMBER STATUS

It is started for each workspace, so it imports modules in C only: `ctypes`, `os`, `socket` and `signal` would double its start.
"""

from __future__ import annotations

import _ctypes
import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import _struct as struct
import errno
import fcntl
import posix as os
import resource
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 4, 22, 38
FILTER_MODE = 2
FILTER = "/run/hud/filter"
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_VERSION, FIRST_WITH_REFER = 1, 2
PATH_BENEATH = 1
WRITING = 1 << 1 | 1 << 13
"""Landlock rights: writing a file, and moving one to another folder, which every ruleset restricts."""
O_PATH = 0o10000000
TIOCSCTTY, TIOCSWINSZ = 0x540E, 0x5414
PACKET_BYTES = 1 << 18
SIGNALS_THAT_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
LONGEST_SIDE = 65_535
"""Maximum rows or columns of a terminal: 16 bits in the kernel."""
LONGEST_REASON = 1_000
KERNEL_FOLDERS = ("proc", "sys")
FIRST_SHELL, SECOND_SHELL = b"/bin/bash", b"/bin/sh"
PREFERRED_VICTIM = b"800"
"""Lowest OOM score: the kernel kills other processes than process 1."""


class Program:
    """A program to execute."""

    def __init__(self, argv: list[bytes], environment: dict[bytes, bytes], folder: bytes) -> None:
        self.argv, self.environment, self.folder = argv, environment, folder


class Supervisor:
    """Processes started for the server, by the server's numbers."""

    def __init__(self, control: socket.socket, limits: list[tuple[int, int]]) -> None:
        self.control = control
        self.limits = limits
        """Resources and the limits of each process."""
        self.numbers: dict[int, bytes] = {}
        self.leaders: set[int] = set()
        """Processes whose groups are killed at their end."""
        self.own_victim_score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)

    def serve(self) -> None:
        """Serve until the server closes the socket."""
        wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        # Python's handler of SIGINT would let processes inside end process 1.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(wake, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll():
                if descriptor == wake:
                    os.read(wake, 4096)
                elif not self.hear():
                    return
            self.reap()

    def hear(self) -> bool:
        """Handle one packet; returns False at the end of the socket."""
        packet, descriptors = receive(self.control)
        if not packet:
            return False
        do, *fields = packet.split(b"\0")
        number = fields.pop(0) if fields else b""
        passed: list[int] = []
        try:
            passed = getattr(self, "do_" + do.decode())(number, fields, descriptors)
            answer = [b"done", number]
        except OSError as error:
            answer = [b"refused", number, (error.strerror or str(error)).encode()]
        except Exception as error:
            # Process 1 must survive any request: agents' input reaches it through the server.
            reason = f"{type(error).__name__}: {error}"[:LONGEST_REASON]
            answer = [b"refused", number, reason.encode("utf-8", "replace")]
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        if number:
            self.say(*answer, descriptors=passed)
        for descriptor in passed:
            os.close(descriptor)
        return True

    def say(self, *fields: bytes, descriptors: Sequence[int] = ()) -> None:
        rights = struct.pack(f"{len(descriptors)}i", *descriptors)
        attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if descriptors else []
        self.control.sendmsg([b"\0".join(fields)], attached)

    def do_spawn(self, number: bytes, fields: list[bytes], descriptors: list[int]) -> list[int]:
        """Start a process in a new session, on three descriptors or on a new terminal."""
        group_ends, rows, columns, folder, words, *strings = fields
        argv, variables = strings[: int(words)], strings[int(words) :]
        program = Program(argv, dict(variable.split(b"=", 1) for variable in variables), folder)
        if not rows:
            pid = self.start(program, descriptors, terminal=False)
            passed = []
        else:
            master, slave = os.openpty()
            try:
                sides = (max(0, min(int(side), LONGEST_SIDE)) for side in (rows, columns))
                fcntl.ioctl(slave, TIOCSWINSZ, struct.pack("HHHH", *sides, 0, 0))
                pid = self.start(program, [slave] * 3, terminal=True)
            except BaseException:
                os.close(master)
                raise
            finally:
                os.close(slave)
            passed = [master]
        self.numbers[pid] = number
        if group_ends:
            self.leaders.add(pid)
        return passed

    def do_signal(self, _: bytes, fields: list[bytes], __: list[int]) -> list[int]:
        """Signal a started process and its group."""
        process, what = fields
        for pid, number in self.numbers.items():
            if number == process:
                os.killpg(pid, int(what))
        return []

    def do_kill_all(self, *_: object) -> list[int]:
        """Kill every process but this one."""
        while True:
            try:
                os.kill(-1, signal.SIGKILL)
            except ProcessLookupError:
                return []
            self.reap()

    def do_listen(self, _: bytes, fields: list[bytes], __: list[int]) -> list[int]:
        """Listen at an address of the workspace's loopback; the server outside accepts."""
        address, port = fields
        listener = socket.socket()
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address.decode(), int(port)))
            listener.listen(64)
            return [os.dup(listener.fileno())]
        finally:
            listener.close()

    def do_dial(self, _: bytes, fields: list[bytes], __: list[int]) -> list[int]:
        """Start a connection to a port of the workspace's loopback; the server outside waits for it."""
        (port,) = fields
        dialled = socket.socket()
        try:
            dialled.setblocking(False)  # The listener may never accept.
            dialled.connect_ex(("127.0.0.1", int(port)))
            return [os.dup(dialled.fileno())]
        finally:
            dialled.close()

    def start(self, program: Program, descriptors: list[int], *, terminal: bool) -> int:
        """Fork and execute; raises `OSError` for an error in the child."""
        problem, problem_write = os.pipe2(os.O_CLOEXEC)
        os.pwrite(self.own_victim_score, PREFERRED_VICTIM, 0)
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    self.become(program, descriptors, terminal=terminal)
                except OSError as error:
                    os.write(problem_write, str(error.errno).encode())
                except ValueError:  # No program, or a variable without a name.
                    os.write(problem_write, str(errno.EINVAL).encode())
                finally:
                    os._exit(127)
        finally:
            os.pwrite(self.own_victim_score, b"0", 0)
            os.close(problem_write)
            with open(problem, "rb") as pipe:
                number = pipe.read()
        if number:
            raise OSError(int(number), os.strerror(int(number)))
        return pid

    def become(self, program: Program, descriptors: list[int], *, terminal: bool) -> None:
        """Execute the requested program in this forked process."""
        os.setsid()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
        if terminal:
            fcntl.ioctl(0, TIOCSCTTY, 0)
        for number in SIGNALS_THAT_PYTHON_IGNORES:
            signal.signal(number, signal.SIG_DFL)
        os.chdir(program.folder)
        os.umask(0o022)
        for name, most in self.limits:
            resource.setrlimit(name, (most, most))
        if program.argv[0] == FIRST_SHELL and not exists(FIRST_SHELL):
            program.argv[0] = SECOND_SHELL
        os.execve(program.argv[0], program.argv, program.environment)

    def reap(self) -> None:
        """Reap processes, and report the exit of those started for the server."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.leaders:
                self.leaders.remove(pid)
                kill_group(pid)
            number = self.numbers.pop(pid, None)
            if number is not None:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                self.say(b"ended", number, b"%d" % code)


def kill_group(pid: int) -> None:
    """Kill a process group; no effect if all members have ended."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        return


def receive(control: socket.socket) -> Any:
    """Return a packet and its descriptors, which are close-on-exec."""
    packet, attached, _, _ = control.recvmsg(
        PACKET_BYTES, socket.CMSG_SPACE(3 * 4), socket.MSG_CMSG_CLOEXEC
    )
    descriptors: list[int] = []
    for level, kind, data in attached:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.extend(struct.unpack(f"{len(data) // 4}i", data))
    return packet, descriptors


def exists(path: str | bytes) -> bool:
    """Return True for a path that leads to a file or folder."""
    try:
        os.stat(path)
    except OSError:
        return False
    return True


def make_folders(path: str) -> None:
    """Make a folder and those above it, where they are missing. Raises `OSError`."""
    if not exists(path):
        make_folders(path.rpartition("/")[0] or "/")
        os.mkdir(path)


class Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
    """C's `int`."""

    _type_ = "i"


class Pointer(_ctypes._SimpleCData):  # type: ignore[type-arg]
    """The address of bytes, which it keeps."""

    _type_ = "z"


class LibraryFunction(_ctypes.CFuncPtr):
    """A function of the C library that returns an `int`, and sets `errno`."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = Int


def library_function(name: str) -> Any:
    """Return a function of the C library; its arguments are `int`, bytes (a pointer to them) and None."""
    return LibraryFunction(_ctypes.dlsym(_ctypes.dlopen(None, 0), name))  # type: ignore[arg-type]


def confine(folders: Sequence[str]) -> bool:
    """Restrict writes of this process and its descendants to `folders`, by Landlock; False if it is unavailable.

    `/` stands for all folders there but the kernel's.

    All processes in the sandbox have the same user: by default each could write another's memory, also a grader's, through
    `/proc/PID/mem`. Raises `OSError` if Landlock fails.
    """
    syscall = library_function("syscall")
    if syscall(LANDLOCK_CREATE_RULESET, None, 0, LANDLOCK_VERSION) < FIRST_WITH_REFER:
        return False
    ruleset = syscall(LANDLOCK_CREATE_RULESET, struct.pack("Q", WRITING), 8, 0)
    if ruleset < 0:
        return False
    try:
        for folder in expanded(folders):
            try:
                below = os.open(folder, O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
            except OSError:
                continue  # Without a rule, nothing below it can be written.
            rule = struct.pack("=Qi", WRITING, below)
            added = syscall(LANDLOCK_ADD_RULE, ruleset, PATH_BENEATH, rule, 0)
            os.close(below)
            if added != 0:
                raise OSError(_ctypes.get_errno(), f"Landlock refuses a rule for {folder}")
        if syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0) != 0:
            raise OSError(_ctypes.get_errno(), "Landlock refuses to restrict")
    finally:
        os.close(ruleset)
    return True


def expanded(folders: Sequence[str]) -> list[str]:
    """Return `folders` with those in the root in place of `/`."""
    if "/" not in folders:
        return list(folders)
    return [f"/{name}" for name in os.listdir("/") if name not in KERNEL_FOLDERS]


def filter_calls() -> None:
    """Apply the filter of system calls to this process and its descendants, where a container's engine has applied its own.

    Raises `OSError` if the kernel refuses it.
    """
    if not exists(FILTER):
        return
    with open(FILTER, "rb") as file:
        steps = file.read()
    prctl = library_function("prctl")
    pointer = Pointer(steps)
    # A `sock_fprog`: the number of instructions, of eight bytes each, and their address.
    program = struct.pack("H6x", len(steps) // 8) + bytes(memoryview(pointer))
    if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(PR_SET_SECCOMP, FILTER_MODE, program):
        raise OSError(_ctypes.get_errno(), "the filter of system calls is refused")


def join(descriptors: Sequence[int]) -> None:
    """Join control groups, by files that were opened outside.

    A single thread that moves itself needs no grace period of the kernel, which moving another process waits for.
    """
    for descriptor in descriptors:
        os.write(descriptor, b"0")
        os.close(descriptor)


def connected(address: str) -> socket.socket:
    """Return the socket of a descriptor, or one that is connected to a path; no program inherits it."""
    if address.isdigit():
        control = socket.socket(fileno=int(address))
        os.set_inheritable(control.fileno(), False)
        return control
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(address)
    return control


def lowered(name: str, most: int) -> tuple[int, int]:
    """Return a resource and its limit: at most the one that a container's engine has set."""
    number = getattr(resource, name)
    _, hard = resource.getrlimit(number)
    return number, most if hard == resource.RLIM_INFINITY else min(most, hard)


def main() -> None:
    """Read the command line, join the groups, send the folder's descriptor, and serve.

    Arguments: socket (its descriptor or path), descriptors of control groups, limits (`RLIMIT_NPROC=9`), folder, further
    writable folders. Both lists are separated by commas. The folder is made if it is missing.
    """
    address, groups, limits, *folders = sys.argv[1:]
    join([int(group) for group in groups.split(",") if group])
    control = connected(address)
    pairs = (limit.split("=") for limit in limits.split(","))
    supervisor = Supervisor(control, [lowered(name, int(most)) for name, most in pairs])
    library_function("prctl")(PR_SET_DUMPABLE, 0, 0, 0, 0)
    make_folders(folders[0])
    folder = os.open(folders[0], os.O_RDONLY | os.O_DIRECTORY)
    confine(folders)
    filter_calls()
    supervisor.say(b"up", descriptors=[folder])
    os.close(folder)
    try:
        supervisor.serve()
    except ConnectionError:
        pass
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
