"""Attempts to get out of a sandbox, run inside of it by a bare Python: `python3 -I escapes.py SETTINGS`.

Prints a JSON object: name of each attempt, and what it got; "" where it got nothing. `SETTINGS` is a JSON object with what
the host has: `secret` (a text), `file` and `home` (paths of files with it), `pid` (a process of the host), `port` and
`sockets` (where the host listens), `shared_memory` (a System V key).
"""

import ctypes
import glob
import itertools
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
        *itertools.islice(glob.iglob("/sys/**/uevent", recursive=True), 200),
        "/dev/mem",
    ],
    "write into the root": ["/evil", "/run/../evil", "/usr/evil"],
}


def attempt(name, work):
    try:
        got = work()
    except Exception:
        got = None
    found[name] = "" if got is None or got is False else str(got)[:200]


def refused_by_the_kernel(call):
    """In a process of its own: what one call changes is not the next one's."""
    child = os.fork()
    if child == 0:
        os._exit(0 if LIBC.syscall(*call) < 0 else 1)
    return os.waitpid(child, 0)[1] == 0


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
                path,
                os.O_WRONLY | (0 if path.startswith(("/proc", "/sys", "/dev")) else os.O_CREAT),
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
for name, paths in {
    "write the programs of the machine": ["/run/hud/machine/bin/evil", "/run/hud/machine/bin/env"],
    "write the supervisor": [
        *glob.glob("/run/hud/*.pyc"),
        "/run/hud/evil",
        "/run/hud/guard/evil.py",
    ],
    "write the program of a process": ["/proc/1/exe", "/proc/self/exe"],
    "write memory of the first process": ["/proc/1/mem"],
    "write names of the machine": ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"],
    "write the core pattern": ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe"],
    "write the kernel's helpers": [
        "/sys/kernel/uevent_helper",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ],
    "release a control group by a program": [
        *glob.glob("/sys/fs/cgroup/*/release_agent"),
        "/sys/fs/cgroup/release_agent",
    ],
    "raise its memory": [
        *glob.glob("/sys/fs/cgroup/*/memory.limit_in_bytes"),
        "/sys/fs/cgroup/memory.max",
    ],
    "raise its processes": [*glob.glob("/sys/fs/cgroup/*/pids.max"), "/sys/fs/cgroup/pids.max"],
    "freeze others": [*glob.glob("/sys/fs/cgroup/*/freezer.state"), "/sys/fs/cgroup/cgroup.freeze"],
    "wake the machine": ["/sys/power/state", "/sys/power/wakeup_count"],
    "write firmware": ["/sys/firmware/efi/efivars/evil", "/sys/class/firmware/timeout"],
    "write security modules": glob.glob("/sys/kernel/security/*"),
    "write interrupts": glob.glob("/proc/irq/*/smp_affinity"),
    "write a bus": glob.glob("/proc/bus/pci/*/*"),
}.items():
    attempt(name, lambda paths=paths: writing(paths))
for name, paths in {
    "read images of the engine": glob.glob("/var/lib/containers/*")
    + glob.glob("/var/lib/docker/*"),
    "read the layers below": ["/sys/upper", "/sys/root", "/sys/work"],
    "read containers of others": glob.glob("/run/containers/*") + glob.glob("/run/libpod/*"),
    "read the socket's folder": glob.glob("/tmp/hud-container-*"),
    "read block devices": glob.glob("/dev/mapper/*")
    + glob.glob("/dev/loop*")
    + glob.glob("/dev/dm-*"),
}.items():
    attempt(name, lambda paths=paths: [path for path in paths if os.path.exists(path)] or None)
for place in (
    "/run/podman/podman.sock",
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/hud/control",
):
    attempt(f"reach the engine at {place}", lambda place=place: connecting(socket.AF_UNIX, place))
for name in (
    "host.containers.internal",
    "host.docker.internal",
    "gateway.containers.internal",
    "hud-container",
):
    attempt(f"find {name}", lambda name=name: socket.gethostbyname(name))
for address in ("10.88.0.1", "172.17.0.1", "192.168.1.1", "10.0.2.2", "100.100.100.200"):
    attempt(
        f"reach the gateway {address}",
        lambda address=address: connecting(socket.AF_INET, (address, 22)),
    )


def from_the_first_process(folder):
    """Files by the root or the working folder of process 1, which is in the container, and shares its root."""
    return os.listdir(f"/proc/1/{folder}{'/..' * 12}{HOST['file']}/..")


def by_a_setuid_copy():
    """A program with a set-user-ID bit that another user executes."""
    import subprocess

    for program in ("/usr/bin/raised", "/bin/su", "/usr/bin/newgrp"):
        if not os.path.exists(program):
            continue
        told = subprocess.run(
            [
                program,
                "-p",
                "-c",
                "read a b c </proc/self/status; while read n e r; do [ $n = Uid: ] && echo $r; done < /proc/self/status",
            ],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            check=False,
            preexec_fn=lambda: None if os.getuid() else os.setresuid(7, 7, 7),
            text=True,
        )
        effective = told.stdout.split()[:1]
        if effective == ["0"] and os.getuid() != 0:
            return told.stdout
        if effective == ["0"]:
            return f"user 7 became root by {program}"
    return None


def by_a_hard_link():
    for path in (HOST["file"], "/run/hud/machine/bin/env", "/proc/self/exe", "/etc/hosts"):
        try:
            os.link(path, "hard")
        except OSError:
            continue
        return path
    return None


def ending_the_first_process():
    for number in (9, 15, 2, 11, 19):
        os.kill(1, number)
    with open("/proc/1/status") as file:
        return None if "State:\tS" in file.read() else "it was stopped"


attempt("leave by the root of the first process", lambda: from_the_first_process("root"))
attempt("leave by the folder of the first process", lambda: from_the_first_process("cwd"))
attempt("become root by a set-user-ID copy", by_a_setuid_copy)
attempt("link what is read-only", by_a_hard_link)
attempt("end the first process", ending_the_first_process)
attempt(
    "limit the first process", lambda: LIBC.prlimit(1, 7, (ctypes.c_ulong * 2)(0, 0), None) == 0
)
attempt(
    "remount what is read-only",
    lambda: LIBC.mount(b"none", b"/run/hud", None, 0x1020 & ~1, None) == 0,
)
attempt("mount control groups", lambda: LIBC.mount(b"none", b"/tmp", b"cgroup2", 0, None) == 0)
attempt("mount the kernel's settings", lambda: LIBC.mount(b"none", b"/tmp", b"sysfs", 0, None) == 0)
attempt("mount processes anew", lambda: LIBC.mount(b"none", b"/tmp", b"proc", 0, None) == 0)
attempt(
    "mount an overlay",
    lambda: (
        LIBC.mount(b"none", b"/tmp", b"overlay", 0, b"lowerdir=/,upperdir=/tmp,workdir=/tmp") == 0
    ),
)
attempt(
    "see mounts of the host",
    lambda: HOST["file"] in open("/proc/self/mountinfo").read(),  # noqa: SIM115
)
print(json.dumps(found), flush=True)
sys.stdin.read()
