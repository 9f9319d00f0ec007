"""The forbidden system calls of a workspace, as a seccomp filter program.

Namespaces already restrict these calls; blocking them reduces the kernel's attack surface and prevents new namespaces with
more privileges.
"""

from __future__ import annotations

import errno
import platform
import socket
import struct
from dataclasses import dataclass

from hud.errors import EnvironmentFault

_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW = 0x7FFF0000
_FAIL = 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets of the call's number, the architecture and the arguments (their low halves)."""
_NEW_NAMESPACES = 0x7E020080
"""CLONE_NEW* of clone: mount, cgroup, uts, ipc, user, pid, net, time."""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: injecting input into a terminal."""
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)

_REFUSED = (
    "ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd "
    "mount umount2 pivot_root chroot unshare setns open_tree move_mount fsopen fsconfig fsmount fspick "
    "mount_setattr swapon swapoff quotactl acct reboot sethostname setdomainname "
    "init_module finit_module delete_module kexec_load kexec_file_load bpf perf_event_open userfaultfd "
    "io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key "
    "open_by_handle_at name_to_handle_at lookup_dcookie fanotify_init syslog vhangup nfsservctl "
    "settimeofday clock_settime adjtimex clock_adjtime mbind set_mempolicy migrate_pages move_pages"
)


@dataclass(frozen=True)
class _Machine:
    """An architecture with its system-call numbers."""

    architecture: int
    numbers: dict[str, int]


_SAME_EVERYWHERE = (
    "io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429 fsopen 430 fsconfig 431 "
    "fsmount 432 fspick 433 clone3 435 pidfd_getfd 438 mount_setattr 442"
)


def _numbers(pairs: str) -> dict[str, int]:
    words = f"{pairs} {_SAME_EVERYWHERE}".split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


_MACHINES = {
    "x86_64": _Machine(
        0xC000003E,
        _numbers(
            "ptrace 101 process_vm_readv 310 process_vm_writev 311 kcmp 312 mount 165 umount2 166 "
            "pivot_root 155 chroot 161 unshare 272 setns 308 swapon 167 swapoff 168 quotactl 179 acct 163 "
            "reboot 169 sethostname 170 setdomainname 171 init_module 175 finit_module 313 delete_module 176 "
            "kexec_load 246 kexec_file_load 320 bpf 321 perf_event_open 298 userfaultfd 323 keyctl 250 "
            "add_key 248 request_key 249 open_by_handle_at 304 name_to_handle_at 303 lookup_dcookie 212 "
            "fanotify_init 300 syslog 103 vhangup 153 nfsservctl 180 settimeofday 164 clock_settime 227 "
            "adjtimex 159 clock_adjtime 305 mbind 237 set_mempolicy 238 migrate_pages 256 move_pages 279 "
            "clone 56 socket 41 ioctl 16 prlimit64 302"
        ),
    ),
    "aarch64": _Machine(
        0xC00000B7,
        _numbers(
            "ptrace 117 process_vm_readv 270 process_vm_writev 271 kcmp 272 mount 40 umount2 39 pivot_root 41 "
            "chroot 51 unshare 97 setns 268 swapon 224 swapoff 225 quotactl 60 acct 89 reboot 142 "
            "sethostname 161 setdomainname 162 init_module 105 finit_module 273 delete_module 106 "
            "kexec_load 104 kexec_file_load 294 bpf 280 perf_event_open 241 userfaultfd 282 keyctl 219 "
            "add_key 217 request_key 218 open_by_handle_at 265 name_to_handle_at 264 lookup_dcookie 18 "
            "fanotify_init 262 syslog 116 vhangup 58 nfsservctl 42 settimeofday 170 clock_settime 112 "
            "adjtimex 171 clock_adjtime 266 mbind 235 set_mempolicy 237 migrate_pages 238 move_pages 239 "
            "clone 220 socket 198 ioctl 29 prlimit64 261"
        ),
    ),
}


def filter_program(machine: str | None = None) -> bytes:
    """Return bubblewrap's filter for `machine` (None: this one). Raises `EnvironmentFault` for an unknown one."""
    machine = machine or platform.machine()
    architecture = _MACHINES.get(machine)
    if architecture is None:
        raise EnvironmentFault(
            f"A workspace needs a filter of system calls, and there is none for {machine} yet "
            f"(there is for {', '.join(_MACHINES)})."
        )
    number = architecture.numbers
    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture.architecture, otherwise=0, then=1),
        _fail(errno.ENOSYS),  # Calls of another architecture, with other numbers.
        _step(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        program += [_step(_JUMP_ANY_BIT, 0x40000000, otherwise=1), _fail(errno.ENOSYS)]
    for name in _REFUSED.split():
        program += _when(number[name], [_fail(errno.EPERM)])
    # The C library then falls back to clone, whose flags can be filtered.
    program += _when(number["clone3"], [_fail(errno.ENOSYS)])
    refused_clone = [
        _step(_LOAD, _FIRST),
        _step(_JUMP_ANY_BIT, _NEW_NAMESPACES, otherwise=1),
        _fail(errno.EPERM),
        _step(_RETURN, _ALLOW),
    ]
    program += _when(number["clone"], refused_clone)
    # All processes have one user, which could lower the limits of process 1.
    own_limits = [_step(_LOAD, _FIRST), *_when(0, [_step(_RETURN, _ALLOW)]), _fail(errno.EPERM)]
    program += _when(number["prlimit64"], own_limits)
    ioctls = [_step(_LOAD, _SECOND)]
    for request in _TERMINAL_INPUT:
        ioctls += _when(request, [_fail(errno.EPERM)])
    program += _when(number["ioctl"], [*ioctls, _step(_RETURN, _ALLOW)])
    families = [_step(_LOAD, _FIRST)]
    for family in _FAMILIES:
        families += _when(family, [_step(_RETURN, _ALLOW)])
    program += _when(number["socket"], [*families, _fail(errno.EAFNOSUPPORT)])
    program.append(_step(_RETURN, _ALLOW))
    return b"".join(program)


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction; `then` and `otherwise` are numbers of instructions to skip."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def _fail(error: int) -> bytes:
    return _step(_RETURN, _FAIL | error)


def _when(value: int, steps: list[bytes]) -> list[bytes]:
    """Execute `steps`, which end in a return, if the loaded number is `value`."""
    return [_step(_JUMP_EQUAL, value, otherwise=len(steps)), *steps]
