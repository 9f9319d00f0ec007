"""Attempts to get out of a sandbox, run inside of it by a bare Python: `python3 -I escapes.py SETTINGS`.

Prints a JSON object: name of each attempt, and what it got; "" where it got nothing. `SETTINGS` is a JSON object with what
the host has: `secret` (a text), `file` and `home` (paths of files with it), `pid` (a process of the host), `port` and
`sockets` (where the host listens), `shared_memory` (a System V key).
"""

import ctypes
import glob
import json
import os
import socket
import sys

HOST = json.loads(sys.argv[1])
WORDS = HOST["backwards"][::-1]
SECRET = WORDS.encode()
LIBC = ctypes.CDLL(None, use_errno=True)
found = {}

CALLS = {
    "make a user namespace": (272, 0x10000000),
    "make a mount namespace": (272, 0x00020000),
    "make a network namespace": (272, 0x40000000),
    "make a cgroup namespace": (272, 0x02000000),
    "clone into a user namespace": (56, 0x10000000 | 17, 0),
    "clone by the newer call": (435, 0, 0),
    "join a namespace": (308, 0, 0),
    "mount": (165, b"none", b"/tmp", b"tmpfs", 0, None),
    "bind the root": (165, b"/", b"/tmp", None, 4096, None),
    "unmount": (166, b"/proc", 2),
    "turn the root": (155, b"/tmp", b"/tmp"),
    "change the root": (161, b"/tmp"),
    "open a mount tree": (428, -100, b"/", 1),
    "move a mount": (429, -100, b"/proc", -100, b"/tmp", 0),
    "open a file system": (430, b"tmpfs", 0),
    "change a mount": (442, -100, b"/", 0, None, 0),
    "attach to the first process": (101, 16, 1, 0, 0),
    "be traced": (101, 0, 0, 0, 0),
    "read another memory": (310, 1, 0, 0, 0, 0, 0),
    "write another memory": (311, 1, 0, 0, 0, 0, 0),
    "compare kernel objects": (312, 1, 1, 0, 0, 0),
    "load a BPF program": (321, 5, None, 0),
    "handle page faults": (323, 0),
    "count performance": (298, None, 0, -1, -1, 0),
    "make a ring": (425, 1, None),
    "open the keyring": (250, 0, -3, 1),
    "add a key": (248, b"user", b"x", b"y", 1, -3),
    "ask for a key": (249, b"user", b"x", None, 0),
    "open a file by its number": (304, -100, None, 0),
    "load a module": (175, None, 0, b""),
    "load a module of a file": (313, 0, b"", 0),
    "load a kernel": (246, 0, 0, None, 0),
    "load a kernel of a file": (320, 0, 0, 0, None, 0),
    "restart the machine": (169, 0xFEE1DEAD, 672274793, 0x1234567),
    "swap": (167, b"/tmp/x", 0),
    "set the clock": (227, 0, (ctypes.c_long * 2)(0, 0)),
    "set the time of day": (164, (ctypes.c_long * 2)(0, 0), None),
    "name the machine": (170, b"x", 1),
    "account processes": (163, b"/tmp/x"),
    "set quotas": (179, 0x800002, b"/", 0, None),
    "read the kernel's log": (103, 3, ctypes.create_string_buffer(64), 64),
    "reach input and output ports": (172, 3),
    "reach one port": (173, 0x80, 1, 1),
    "watch a file system": (300, 0, 0),
    "move pages of the host": (279, HOST["pid"], 0, None, None, None, 0),
    "make a block device": (133, b"disk", 0o60666, 8 << 8),
    "make a character device": (133, b"memory", 0o20666, 1 << 8 | 1),
    "become root": (105, 0),
    "become root in every way": (117, 0, 0, 0),
    "join the groups of root": (116, 1, (ctypes.c_uint * 1)(0)),
    "take capabilities": (
        126,
        (ctypes.c_uint * 2)(0x20080522, 0),
        (ctypes.c_uint * 6)(*[0xFFFFFFFF] * 6),
    ),
    "open a process of the host": (434, HOST["pid"], 0),
    "use calls of another architecture": (0x40000000 + 39,),
    "hang up the terminal": (153,),
    "set limits of the host": (302, HOST["pid"], 7, (ctypes.c_ulong * 2)(0, 0), None),
    "set the schedule of the host": (
        203,
        HOST["pid"],
        8,
        ctypes.create_string_buffer(b"\1" + bytes(7)),
    ),
    "find shared memory of the host": (29, HOST["shared_memory"], 4, 0),
}
"""System calls, by their numbers on x86-64: any result but an error is an escape."""

READ = {
    "read a file of the host": [HOST["file"]],
    "read it from above": ["../" * 12 + HOST["file"].lstrip("/")],
    "read it by the root of a process": [f"/proc/{who}/root{HOST['file']}" for who in ("self", 1)],
    "read it by a folder of a process": [
        f"/proc/{who}/cwd{'/..' * 12}{HOST['file']}" for who in ("self", 1)
    ],
    "read it by a descriptor": [f"/proc/1/fd/{number}" for number in range(32)],
    "read a home": [HOST["home"], "/root/.bash_history", "/root/.ssh/id_rsa"],
    "read variables of processes": glob.glob("/proc/[0-9]*/environ"),
    "read command lines of processes": glob.glob("/proc/[0-9]*/cmdline"),
    "read passwords": ["/etc/shadow", "/etc/gshadow", "/etc/sudoers"],
    "read memory of the kernel": ["/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/port"],
    "read messages of the kernel": ["/dev/kmsg", "/proc/kmsg"],
    "read devices": [
        *glob.glob("/dev/sd*"),
        *glob.glob("/dev/nvme*"),
        *glob.glob("/dev/vd*"),
        "/dev/fuse",
        "/dev/kvm",
    ],
    "read keys of the machine": [*glob.glob("/etc/ssh/*_key"), *glob.glob("/etc/ssl/private/*")],
    "read logs": glob.glob("/var/log/*"),
}
WRITE = {
    "write a program": ["/usr/bin/evil", "/bin/sh", "/usr/bin/python3"],
    "write a library": ["/etc/ld.so.preload", "/etc/ld.so.cache", "/lib/evil.so"],
    "write settings": ["/etc/passwd", "/etc/hosts", "/etc/resolv.conf", "/etc/profile"],
    "write settings of the kernel": [
        os.path.join(folder, name) for folder, _, names in os.walk("/proc/sys") for name in names
    ],
    "press a key of the kernel": ["/proc/sysrq-trigger"],
    "write maps of users": ["/proc/self/uid_map", "/proc/self/gid_map", "/proc/1/uid_map"],
    "be killed last": ["/proc/1/oom_score_adj", "/proc/self/oom_score_adj"],
    "write control groups": [
        *glob.glob("/sys/fs/cgroup/*"),
        *glob.glob("/sys/fs/cgroup/*/cgroup.procs"),
    ],
    "write devices of the machine": [
        *glob.glob("/sys/**/uevent", recursive=True)[:200],
        "/dev/mem",
    ],
    "write into the root": ["/evil", "/run/../evil", "/usr/evil"],
}


def attempt(name, work):
    try:
        got = work()
    except (OSError, ValueError, IndexError):
        got = None
    found[name] = "" if got is None or got is False else str(got)[:200]


def refused_by_the_kernel(call):
    return LIBC.syscall(*call) < 0 or None


def reading(paths):
    for path in paths:
        try:
            with open(path, "rb", buffering=0) as file:
                said = file.read(1 << 16)
        except OSError:
            continue
        if SECRET in said or (
            said
            and path.startswith(
                (
                    "/etc/shadow",
                    "/etc/gshadow",
                    "/dev/",
                    "/proc/1/m",
                    "/root",
                    "/etc/ssh",
                    "/var/log",
                )
            )
        ):
            return path
    return None


def memory_of_the_first_process():
    with open("/proc/1/maps") as maps, open("/proc/1/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            start, end = (int(one, 16) for one in span.split("-"))
            if not rights.startswith("rw"):
                continue
            try:
                memory.seek(start)
                if SECRET in memory.read(min(end - start, 64 << 20)):
                    return line
            except (OSError, ValueError, OverflowError):
                continue
    return None


def writing(paths):
    for path in paths:
        try:
            handle = os.open(
                path, os.O_WRONLY | (0 if path.startswith(("/proc", "/sys")) else os.O_CREAT)
            )
        except OSError:
            continue
        try:
            # Anybody opens these; what counts is who writes.
            if path.endswith("_map"):
                os.write(handle, b"0 0 1\n")
            if path.endswith("oom_score_adj"):
                os.write(handle, b"-1000\n")
        except OSError:
            continue
        finally:
            os.close(handle)
        # Some files can be opened by their owner and take nothing; these hold no settings of the machine.
        if os.path.realpath(path) not in ("/dev/null", "/dev/zero"):
            return path
    return None


def connecting(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as one:
        one.settimeout(3)
        one.connect(address)
    return address


def linking(path):
    os.link(path, "mine")
    return path


def through_a_link():
    os.symlink(HOST["file"], "link")
    with open("link", "rb") as file:
        return file.read()


def by_a_set_user_program():
    import subprocess

    for program in ("/bin/su", "/usr/bin/sudo", "/usr/bin/passwd", "/usr/bin/newgrp", "/bin/mount"):
        if os.path.exists(program):
            said = subprocess.run(
                [program, "--help"], capture_output=True, stdin=subprocess.DEVNULL, check=False
            )
            del said
    with open("/proc/self/status") as file:
        return None if "NoNewPrivs:\t1" in file.read() else "privileges can be gained"


def typing_into_a_terminal():
    import pty

    _, slave = pty.openpty()
    return None if LIBC.syscall(16, slave, ctypes.c_ulong(0x5412), b"x") < 0 else "typed"


if os.uname().machine == "x86_64":
    for name, call in CALLS.items():
        ctypes.set_errno(0)
        attempt(name, lambda call=call: None if refused_by_the_kernel(call) else "done")
for name, paths in READ.items():
    attempt(name, lambda paths=paths: reading(paths))
for name, paths in WRITE.items():
    attempt(name, lambda paths=paths: writing(paths))
for number, name in enumerate(
    ("its loopback", "a public server", "the cloud's metadata", "its neighbours")
):
    at = [("127.0.0.1", HOST["port"]), ("1.1.1.1", 53), ("169.254.169.254", 80), ("10.0.0.1", 22)][
        number
    ]
    attempt(f"reach {name}", lambda at=at: connecting(socket.AF_INET, at))
attempt("reach its loopback by IPv6", lambda: connecting(socket.AF_INET6, ("::1", HOST["port"])))
for name in (
    "/var/run/docker.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    *HOST["sockets"],
):
    said = name.replace("\0", "@")
    attempt(f"reach the socket {said}", lambda name=name: connecting(socket.AF_UNIX, name))
for name, kind in {
    "packets": (17, 3),
    "virtual machines": (40, 1),
    "the kernel's ciphers": (38, 5),
    "raw packets": (2, 3, 1),
}.items():
    attempt(f"open a socket for {name}", lambda kind=kind: bool(socket.socket(*kind)))
attempt(
    "see other networks",
    lambda: [name for _, name in socket.if_nameindex() if name != "lo"] or None,
)
attempt("see a process of the host", lambda: os.path.isdir(f"/proc/{HOST['pid']}") or None)
attempt("end a process of the host", lambda: os.kill(HOST["pid"], 9) or "ended")
attempt(
    "slow a process of the host",
    lambda: os.setpriority(os.PRIO_PROCESS, HOST["pid"], 19) or "slowed",
)
attempt(
    "read its own variables",
    lambda: [name for name, value in os.environ.items() if WORDS in value] or None,
)
attempt("read memory of the first process", memory_of_the_first_process)
attempt("link a file of the system", lambda: linking("/etc/passwd"))
attempt("link a program of the system", lambda: linking("/usr/bin/env"))
attempt("read through a link", through_a_link)
attempt("gain privileges by a program", by_a_set_user_program)
attempt("type into a terminal", typing_into_a_terminal)
attempt(
    "inherit descriptors",
    lambda: [one for one in os.listdir("/proc/self/fd") if int(one) > 9] or None,
)
print(json.dumps(found), flush=True)
sys.stdin.read()
