"""A command that changes an unpacked image: the `RUN` of a build without a daemon, in a sandbox of its own without a network."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from hud.environment.workspace.sandbox.bubblewrap import (
    as_user,
    memory_file,
    required_program,
    sandbox_user,
)
from hud.environment.workspace.sandbox.limits import MB, WorkspaceLimits
from hud.environment.workspace.sandbox.mounts import HOST_NAME, hidden_files
from hud.environment.workspace.sandbox.root_image import OVERLAY, RootImage
from hud.environment.workspace.sandbox.seccomp import filter_program
from hud.errors import EnvironmentFault
from hud.graders.command import CommandOutcome

_KEPT_BYTES = 1 << 16
_MOUNT_ROOT = (
    "mount -t tmpfs -o mode=755 hud /sys && mkdir /sys/root && mount --no-canonicalize --rbind . /sys/root "
    '&& exec "$@"'
)
"""The image is the current folder: the sandbox's user may not be able to search the folders above it."""


def run_build_step(
    image: RootImage, argv: Sequence[str], limits: WorkspaceLimits
) -> CommandOutcome:
    """Run a command in an image, which it changes on the disk; standard output holds errors, too.

    `exit_code` is None if it was killed after `limits.seconds`. Raises `EnvironmentFault` on a machine without bubblewrap or
    util-linux.
    """
    with ExitStack() as stack:
        seccomp = memory_file(stack, filter_program())
        output = stack.enter_context(tempfile.TemporaryFile())
        process = subprocess.Popen(
            [*as_user(sandbox_user(image)), *_command(image, argv, limits, seccomp)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[seccomp],
            cwd=image.root,
            env=dict(image.variables),  # And none of this process's: they may contain keys.
            start_new_session=True,
        )
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(limits.seconds)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - _KEPT_BYTES))
        return CommandOutcome(status, output.read().decode("utf-8", "replace"), "")


def _command(
    image: RootImage, argv: Sequence[str], limits: WorkspaceLimits, seccomp: int
) -> list[str]:
    user = str(image.user)
    bounds = limits.of_each_process(grouped=False)
    names = {"RLIMIT_NPROC": "nproc", "RLIMIT_FSIZE": "fsize", "RLIMIT_CORE": "core", "RLIMIT_DATA": "data"}  # fmt: skip
    return [
        *(_program("unshare"), "--user", "--map-root-user", "--mount"),
        *("/bin/sh", "-c", _MOUNT_ROOT, "sh"),
        _program("prlimit"),
        *(f"--{option}={bounds[name]}" for name, option in names.items() if name in bounds),
        *(required_program("bwrap", "bubblewrap"), "--unshare-all", "--unshare-user"),
        *("--disable-userns", "--uid", user, "--gid", user, "--hostname", HOST_NAME),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL", "--bind", OVERLAY, "/"),
        *("--proc", "/proc", *hidden_files(), "--dev", "/dev", "--remount-ro", "/dev"),
        *("--size", str(int(limits.scratch_mb * MB)), "--tmpfs", "/tmp"),
        *("--seccomp", str(seccomp), "--chdir", image.workdir, "--", *argv),
    ]


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise EnvironmentFault(
            f"A build without a daemon needs {name} (Debian package 'util-linux')."
        )
    return path
