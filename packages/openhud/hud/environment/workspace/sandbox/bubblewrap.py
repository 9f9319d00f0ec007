"""The bubblewrap command line of a workspace's sandbox: namespaces, read-only mounts and limits."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from hud.environment.workspace.sandbox.limits import MB, WorkspaceLimits
from hud.environment.workspace.sandbox.mounts import (
    GUARD,
    HOME,
    HOST_NAME,
    INSIDE,
    USER_ID,
    Mount,
    font_cache,
    hidden_files,
    made_up_files,
    mounted_programs,
    system_mounts,
)
from hud.environment.workspace.sandbox.root_image import (
    IMAGE_USER,
    OVERLAY,
    RootImage,
    SandboxImage,
    machine_mount,
    machine_program,
)
from hud.environment.workspace.sandbox.scripts import script, script_files, script_mounts
from hud.environment.workspace.sandbox.seccomp import filter_program
from hud.errors import EnvironmentFault

_WRITABLE = ("/tmp", "/dev", HOME)
"""Writable folders besides the workspace's; not `/proc`."""
_FILES_OF_IMAGES = ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf")
"""Generated files that an image has itself."""
_FIRST_USER, _USERS = 2_000_000_000, 100_000_000
"""User ids without accounts: if this process is root, each sandbox has its own user id on the machine."""


@dataclass(frozen=True)
class Plan:
    """Contents of a sandbox."""

    folder: str
    """Path of the workspace's files in the sandbox."""
    limits: WorkspaceLimits
    mounts: Sequence[Mount] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Addresses of peers inside, by name."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of all its processes."""
    folders: Sequence[str] = ()
    """Further writable folders, empty at the start."""
    image: SandboxImage | None = None
    """Programs and files; None: the machine's programs."""

    @property
    def writable(self) -> tuple[str, ...]:
        """All folders in which its processes can write, the workspace's first."""
        if self.image is not None:
            return (self.folder, "/dev", *self.image.writable(), *self.folders)
        return (self.folder, *_WRITABLE, *self.folders)

    @property
    def shell(self) -> str:
        """Path of the shell inside."""
        return "/bin/bash" if self.image is None else self.image.shell

    def program(self, argv: Sequence[str]) -> list[str]:
        """Return the command that executes a program of the machine inside."""
        return list(argv) if self.image is None else machine_program(argv)


@dataclass(frozen=True)
class Command:
    """Command line of a sandbox, with its descriptors and the user to which it switches (None: this process's own)."""

    arguments: list[str]
    descriptors: list[int]
    user: int | None
    start_folder: str = "/"
    """Current folder of its first process, on the machine."""


def sandbox_user(image: SandboxImage | None = None) -> int | None:
    """Return the sandbox's user id on the machine, or None for this process's; an image's files have one owner.

    It must not be root's: the kernel lets root write `/proc/sys`.
    """
    if os.geteuid() != 0:
        return None
    return (
        IMAGE_USER if image is not None else _FIRST_USER + random.SystemRandom().randrange(_USERS)
    )


def memory_file(stack: ExitStack, content: bytes) -> int:
    """Return a descriptor to read `content` from; `stack` closes it."""
    descriptor = os.memfd_create("hud")
    stack.callback(os.close, descriptor)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def required_program(program: str, package: str) -> str:
    """Return the path of a program; raises `EnvironmentFault` if it is not installed."""
    path = shutil.which(program)
    if path is None:
        raise EnvironmentFault(
            f"There is no {program!r} on this machine; scripts/setup-worlds installs it "
            f"(Debian package {package!r})."
        )
    return path


def as_user(user: int | None) -> list[str]:
    """Return the command prefix that executes a program as a user; empty for this process's user.

    Options of `subprocess` would fork, which copies the page tables of a large process; without them it is started by vfork.
    """
    if user is None:
        return []
    setpriv = required_program("setpriv", "util-linux")
    return [setpriv, f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]


@dataclass(frozen=True)
class _Root:
    """Parts of the command line that hang on the root file system."""

    user: int
    """User id inside."""
    mounts: list[str]
    folder: list[str]
    """Arguments that make the workspace's folder."""
    read_only: str
    """Mount that is made read-only after all others."""
    first: list[str]
    """Command that executes bubblewrap, as the sandbox's user."""
    links: list[str] = field(default_factory=list)
    temporary: tuple[str, ...] = ("/tmp", "/dev/shm")
    """Writable folders in memory."""
    files: tuple[str, ...] = ()
    """Files that it has itself."""
    start_folder: str = "/"


def _machine_root(plan: Plan, user: int | None) -> _Root:
    """Return the root of the machine's programs, mounted read-only into an empty one."""
    mounts = []
    for folder in ("/etc", "/etc/ssl", "/home", "/run", INSIDE, "/var"):
        mounts += ["--perms", "0755", "--dir", folder]
    return _Root(
        user=USER_ID,
        mounts=[*mounts, *system_mounts(), *font_cache(), *script_mounts()],
        folder=["--perms", "0755", "--size", _size(plan.limits.disk_mb), "--tmpfs", plan.folder],
        read_only="/",  # Since bubblewrap's root file system has no size limit.
        first=as_user(user),
        links=["--symlink", "/tmp", "/var/tmp"],
        temporary=("/tmp", "/dev/shm", HOME),
    )


def _image_root(plan: Plan, image: RootImage, user: int | None) -> _Root:
    """Return the root of an image, of which changes are in memory."""
    own = ["--perms", "0755", "--size", _size(plan.limits.scratch_mb), "--tmpfs", INSIDE]
    return _Root(
        user=image.user,
        mounts=["--bind", OVERLAY, "/", *own, *machine_mount(), *script_mounts()],
        folder=["--dir", plan.folder],
        read_only=INSIDE,
        first=image.overlay_command(int(plan.limits.disk_mb * MB), user),
        files=_FILES_OF_IMAGES,
        start_folder=str(image.root),
    )


def command(plan: Plan, control: int, stack: ExitStack, groups: Sequence[int]) -> Command:
    """Return the command for `plan`, with `control` as the supervisor's socket. `stack` closes the descriptors.

    `groups` are entrances of control groups that limit the memory of all its processes together.
    """
    program = required_program("bwrap", "bubblewrap")
    descriptors = [control, *groups]

    def file(content: bytes) -> str:
        descriptors.append(memory_file(stack, content))
        return str(descriptors[-1])

    limits = plan.limits
    image = plan.image
    user = sandbox_user(image)
    root = _image_root(plan, image, user) if isinstance(image, RootImage) else _machine_root(plan, user)  # fmt: skip
    user_inside = str(root.user)
    arguments = [*root.first, program, "--unshare-all", "--unshare-user", "--disable-userns"]
    arguments += ["--uid", user_inside, "--gid", user_inside, "--hostname", HOST_NAME]
    arguments += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    arguments += root.mounts
    for path, text in made_up_files(plan.hosts).items():
        if path not in root.files:
            arguments += ["--perms", "0644", "--file", file(text.encode()), path]
    arguments += ["--perms", "0755", "--dir", GUARD]
    for path, content in script_files().items():
        arguments += ["--perms", "0444", "--file", file(content), path]
    arguments += ["--proc", "/proc", *hidden_files(), "--dev", "/dev", *root.links]
    for folder in (*root.temporary, *plan.folders):
        mode = "1777" if folder in ("/tmp", "/dev/shm") else "0700"
        arguments += ["--perms", mode, "--size", _size(limits.scratch_mb), "--tmpfs", folder]
    arguments += root.folder
    for path in mounted_programs(user):
        arguments += ["--ro-bind", path, path]
    for mount in plan.mounts:
        arguments += mount.arguments()
    arguments += ["--remount-ro", "/dev", "--remount-ro", root.read_only]
    arguments += ["--seccomp", file(filter_program()), "--chdir", plan.folder]
    bounds = limits.of_each_process(grouped=bool(groups))
    limit_arguments = [
        ",".join(map(str, groups)),
        ",".join(f"{name}={most}" for name, most in bounds.items()),
    ]
    arguments += [
        "--",
        *plan.program(script("supervisor", str(control), *limit_arguments, *plan.writable)),
    ]
    return Command(arguments, descriptors, user, root.start_folder)


def _size(megabytes: float) -> str:
    return str(int(megabytes * MB))
