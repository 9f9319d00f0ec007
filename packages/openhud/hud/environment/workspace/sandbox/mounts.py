"""Mounts of a workspace, all read-only: this machine's programs, and the environment's mounts.

The machine's home folders, data, sockets, keys and configuration are not mounted: `/etc` has the files that programs need,
and generated ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hud import settings
from hud.errors import UsageError

USER = "agent"
USER_ID = 1000
HOME = "/home/agent"
HOST_NAME = "workspace"
INSIDE = "/run/hud"
"""Folder of OpenHUD's scripts in the sandbox."""
GUARD = f"{INSIDE}/guard"
"""Folder of the guard: agents' files cannot shadow Python's library in the environment's commands."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SEARCH_PATH = f"{HOME}/.local/bin:{SYSTEM_PATH}"

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_CONFIGURATION = (
    "alternatives ld.so.cache ld.so.conf ld.so.conf.d ssl/certs ssl/openssl.cnf ca-certificates pki/tls/certs "
    "pki/ca-trust crypto-policies localtime timezone mime.types services protocols magic fonts terminfo "
    "python3 python3.9 python3.10 python3.11 python3.12 python3.13 python3.14 perl java-17-openjdk "
    "java-21-openjdk java-25-openjdk"
)
_MADE_UP = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\n{USER}:x:{USER_ID}:{USER_ID}:{USER}:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"root:x:0:\n{USER}:x:{USER_ID}:\nnogroup:x:65534:\n",
    "hosts": f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "hostname": f"{HOST_NAME}\n",
    "resolv.conf": "",
}
_HIDDEN = (
    "acpi asound cmdline config.gz kallsyms kcore key-users keys latency_stats pressure sched_debug scsi sysrq-trigger "
    "timer_list timer_stats"
)
"""Files of `/proc` that describe or control the machine, and that programs do not need."""
_FONT_CACHE = "/var/cache/fontconfig"
_KERNEL = ("/proc", "/sys", "/dev")
_TAKEN = ("/", "/proc", "/dev", "/etc", "/run", "/tmp", HOME, INSIDE)


@dataclass(frozen=True)
class Mount:
    """A file or folder of this machine, mounted read-only at `target`."""

    source: str | Path
    target: str

    def __post_init__(self) -> None:
        target = PurePosixPath(self.target)
        if not target.is_absolute() or ".." in target.parts or taken(self.target):
            raise UsageError(
                f"A mount's target must be an absolute path of its own in the workspace, not {self.target!r}."
            )
        if not Path(self.source).expanduser().exists():
            raise UsageError(f"There is no {str(self.source)!r} to mount in a workspace.")

    def arguments(self) -> list[str]:
        """Return the mount as bubblewrap arguments."""
        return ["--ro-bind", str(Path(self.source).expanduser().resolve()), self.target]


def taken(path: str) -> bool:
    """Return True if `path` is, or contains, one of the sandbox's own mounts, or lies in one of the kernel's or of OpenHUD's."""
    wanted = PurePosixPath(path)
    if any(wanted.is_relative_to(own) for own in (INSIDE, *_KERNEL)):
        return True
    return any(PurePosixPath(own).is_relative_to(wanted) for own in (*_TAKEN, *_SYSTEM))


def mounted_programs(user: int | None) -> list[str]:
    """Return the paths of agent programs (`settings.programs`) that a sandbox mounts.

    Left out are those that the system's mounts hold, and those that the sandbox's `user` cannot reach: programs elsewhere
    must not keep a workspace from starting.
    """
    return [str(path) for path in settings.programs() if _is_mountable(path, user)]


def _is_mountable(path: Path, user: int | None) -> bool:
    held = any(
        path.is_relative_to(folder) for folder in (*_SYSTEM, INSIDE, "/proc", "/dev", "/etc")
    )
    if held or taken(str(path)) or not path.exists():
        return False
    return user is None or all(parent.stat().st_mode & 0o001 for parent in path.resolve().parents)


def system_mounts(configuration: str = _CONFIGURATION) -> list[str]:
    """Return mounts of the machine's programs and of names in its `/etc`, as arguments of bubblewrap."""
    arguments: list[str] = []
    for folder in _SYSTEM:
        if os.path.islink(folder):
            arguments += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            arguments += ["--ro-bind", folder, folder]
    for name in configuration.split():
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return arguments


def font_cache() -> list[str]:
    """Return bubblewrap arguments for the machine's index of fonts, without which each program that shows text makes one."""
    return ["--ro-bind-try", _FONT_CACHE, _FONT_CACHE]


def hidden_files() -> list[str]:
    """Return bubblewrap arguments that cover files of `/proc`."""
    arguments: list[str] = []
    for path in (f"/proc/{name}" for name in _HIDDEN.split()):
        if os.path.isfile(path):
            arguments += ["--ro-bind", "/dev/null", path]
        elif os.path.isdir(path):
            arguments += ["--tmpfs", path, "--remount-ro", path]
    return arguments


def made_up_files(hosts: Mapping[str, str]) -> dict[str, str]:
    """Return the generated files of a workspace, by path; `hosts` are entries of `/etc/hosts`."""
    host_lines = "".join(f"{address} {name}\n" for name, address in hosts.items())
    return {
        f"/etc/{name}": text + (host_lines if name == "hosts" else "")
        for name, text in _MADE_UP.items()
    }
