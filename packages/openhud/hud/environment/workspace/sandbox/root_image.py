"""`SandboxImage`: the programs of a workspace that are not the machine's. `RootImage`: an unpacked image, with an overlay.

The kernel mounts the overlay in a user namespace of its own, in which bubblewrap then runs: bubblewrap before 0.11 has no
overlays. Changes are in memory, and end with the workspace.
"""

from __future__ import annotations

import os
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from hud.environment.workspace.sandbox.mounts import INSIDE
from hud.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from hud.environment.workspace.sandbox.bubblewrap import Plan
    from hud.environment.workspace.sandbox.launch import Launch

IMAGE_USER = 1_999_999_999
"""Owner of unpacked images, and the user of their sandboxes, if this process is root."""
OVERLAY = "/sys/root"
_MOUNT_OVERLAY = r"""
my ($setgroups, $setresgid, $setresuid, $prctl, $unshare, $mount, $switch, $user, $group, $size) = map { 0 + $_ } splice @ARGV, 0, 10;
sub must { my ($what, @call) = @_; syscall(shift(@call), @call) == 0 or die "overlay: $what: $!\n" }
sub put { open(FILE, ">", "/proc/self/$_[0]") && print(FILE $_[1]) && close(FILE) or die "overlay: $_[0]: $!\n" }
if ($switch) {
    must("setgroups", $setgroups, 0, 0);
    must("setresgid", $setresgid, $group, $group, $group);
    must("setresuid", $setresuid, $user, $user, $user);
    must("prctl", $prctl, 4, 1, 0, 0, 0);
}
must("new namespaces", $unshare, 0x10020000);
put("setgroups", "deny");
put("uid_map", "0 $user 1");
put("gid_map", "0 $group 1");
must("private mounts", $mount, "none", "/", 0, 0x44000, 0);
must("tmpfs", $mount, "hud", "/sys", "tmpfs", 0, "size=$size,mode=755");
mkdir("/sys/$_", 0755) or die "overlay: $_: $!\n" for ("upper", "work", "root");
must("mount", $mount, "hud", "/sys/root", "overlay", 0, "lowerdir=.,upperdir=/sys/upper,workdir=/sys/work,userxattr");
exec { $ARGV[0] } @ARGV or die "overlay: $ARGV[0]: $!\n";
"""
"""Perl, which starts in a millisecond: one process, where `setpriv`, `unshare` and `mount` are six. 4: PR_SET_DUMPABLE, which lets a
process that changed its user write its own maps; 0x10020000: CLONE_NEWUSER and CLONE_NEWNS; 0x44000: MS_REC and MS_PRIVATE.

The tmpfs hides `/sys`, of which a sandbox mounts nothing, in the new mount namespace only. The image is the current folder: the
sandbox's user may not be able to search the folders above it."""
_CALLS = {"x86_64": (116, 119, 117, 157, 272, 165), "aarch64": (159, 149, 147, 167, 97, 40)}
"""Numbers of setgroups, setresgid, setresuid, prctl, unshare and mount, by machine."""
_KERNEL_FOLDERS = ("proc", "sys", "dev")
MACHINE = f"{INSIDE}/machine"
"""The machine's `/usr`, read-only, for OpenHUD's scripts: the image may have no Python."""
_LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")


class SandboxImage(ABC):
    """A container image whose programs a workspace has: the port of what starts a sandbox of one."""

    workdir: str
    variables: Mapping[str, str]
    """Variables of all processes; `PATH` is among them."""

    @property
    @abstractmethod
    def shell(self) -> str:
        """Path of its shell inside; raises `UsageError` if it has none."""

    @abstractmethod
    def writable(self) -> tuple[str, ...]:
        """Return its top folders, except those of the kernel: processes write below these."""

    def check_path(self, path: str) -> None:  # noqa: B027 - most images accept all
        """Raise `UsageError` if `path` cannot be a folder or mount of the sandbox."""

    def launch(self, plan: Plan) -> Launch | None:
        """Return the start of a sandbox of `plan`; None: bubblewrap starts it."""
        return None


@dataclass(frozen=True)
class RootImage(SandboxImage):
    """An unpacked image with its configuration; `hud_integrations.containers.image` makes one."""

    root: Path
    """Folder of its root file system; never changed."""
    workdir: str = "/"
    variables: Mapping[str, str] = field(default_factory=dict)
    user: int = 0
    """User id inside."""

    @property
    def shell(self) -> str:
        """Path of its shell inside; raises `UsageError` if it has none."""
        for name in ("bash", "sh"):
            for folder in ("bin", "usr/bin"):
                if os.path.lexists(self.root / folder / name):
                    return f"/{folder}/{name}"
        raise UsageError(f"The image at {self.root} has no /bin/sh: a workspace needs a shell.")

    def writable(self) -> tuple[str, ...]:
        """Return its top folders, except those of the kernel: processes write below these."""
        return tuple(
            f"/{entry.name}"
            for entry in sorted(os.scandir(self.root), key=lambda entry: entry.name)
            if entry.is_dir(follow_symlinks=False) and entry.name not in _KERNEL_FOLDERS
        )

    def check_path(self, path: str) -> None:
        """Raise `UsageError` if a path that the sandbox mounts or makes leads through a link of the image."""
        place = self.root
        for name in PurePosixPath(path).parts[1:]:
            place = place / name
            if not os.path.lexists(place):
                return
            if stat.S_ISLNK(place.lstat().st_mode):
                raise UsageError(
                    f"{path} leads through a link of the image (/{place.relative_to(self.root)}); name the link's target."
                )

    def overlay_command(self, size: int, user: int | None) -> list[str]:
        """Return a command prefix that mounts the overlay at `OVERLAY`, as `user`; to be started in `root`.

        Raises `EnvironmentFault` on a machine without Perl, or of another kind.
        """
        perl, calls = shutil.which("perl"), _CALLS.get(os.uname().machine)
        if perl is None or calls is None:
            raise EnvironmentFault(
                "A workspace with an image needs perl (Debian package 'perl-base'), on x86-64 or 64-bit ARM."
            )
        ids = (os.geteuid(), os.getegid()) if user is None else (user, user)
        numbers = (*calls, int(user is not None), *ids, size)
        return [perl, "-e", _MOUNT_OVERLAY, *map(str, numbers)]


def machine_mount() -> list[str]:
    """Return bubblewrap arguments for the machine's programs that OpenHUD's scripts need."""
    return ["--ro-bind", "/usr", MACHINE]


def machine_program(argv: Sequence[str]) -> list[str]:
    """Return the command that executes a program of the machine, with its own libraries, inside an image.

    Raises `EnvironmentFault` on a machine without glibc in /usr.
    """
    for path in _LOADERS:
        loader = os.path.realpath(path)
        if os.path.exists(loader) and loader.startswith("/usr/"):
            libraries = (
                os.path.dirname(loader).removeprefix("/usr"),
                "/lib64",
                "/lib",
                "/local/lib",
            )
            search_path = ":".join(MACHINE + folder for folder in libraries)
            return [
                _path_inside(loader),
                "--library-path",
                search_path,
                _path_inside(argv[0]),
                *argv[1:],
            ]
    raise EnvironmentFault(
        "A workspace with an image needs a machine with glibc and its libraries in /usr."
    )


def _path_inside(path: str) -> str:
    """Return the path inside of a program of the machine."""
    if path.startswith(INSIDE):
        return path
    return MACHINE + path.removeprefix("/usr")
