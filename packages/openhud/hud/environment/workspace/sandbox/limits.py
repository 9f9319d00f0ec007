"""Limits of a workspace."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from hud.errors import UsageError

MB = 1 << 20
OPEN_FILES = 4096
"""Maximum descriptors of each process."""


@dataclass(frozen=True)
class WorkspaceLimits:
    """The limits of a run's workspace; reaching one causes errors in this run only."""

    memory_mb: float = 2048
    """Memory of all processes and files together, in MB; without control groups, of each process."""
    processes: int = 256
    """Concurrent processes and threads."""
    disk_mb: float = 1024
    """Size of the workspace's files, in MB; they are in memory, and count there, too."""
    scratch_mb: float = 256
    """Size of the files in each of `/tmp`, `/dev/shm`, the home folder and further `folders`, in MB."""
    processors: float = 4
    """CPUs of all its processes together; unlimited without control groups."""
    seconds: float = 3600
    """Lifetime from its start, in seconds; then all processes are killed, and none can be started."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not (value > 0 and math.isfinite(value)):
                raise UsageError(
                    f"A workspace's {field.name} must be a positive number, not {value!r}."
                )

    def of_each_process(self, *, grouped: bool) -> dict[str, int]:
        """Return resource limits by name; `grouped`: control groups limit the total memory."""
        limits = {
            "RLIMIT_NPROC": int(self.processes),
            # Above any file system's size, so that writes fail with "no space left".
            "RLIMIT_FSIZE": int((self.disk_mb + self.scratch_mb) * MB),
            "RLIMIT_NOFILE": OPEN_FILES,
            "RLIMIT_CORE": 0,
        }
        if not grouped:
            # Not the address space: runtimes reserve far more of it than they use.
            limits["RLIMIT_DATA"] = int(self.memory_mb * MB)
        return limits
