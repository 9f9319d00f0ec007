"""Limits of one workspace."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from hud.errors import UsageError

MB = 1 << 20
OPEN_FILES = 4096
"""Descriptors of each process, at most."""


@dataclass(frozen=True)
class WorkspaceLimits:
    """The limits of one run's workspace; a run that reaches one gets errors, and no other run notices."""

    memory_mb: float = 2048
    """Memory of all its processes and files together; of each process, where there are no control groups."""
    processes: int = 256
    """Processes and threads at a time."""
    disk_mb: float = 1024
    """Size of the workspace's files; they live in memory, and count there too."""
    scratch_mb: float = 256
    """Size of the files of each of `/tmp`, `/dev/shm` and the home folder."""
    processors: float = 4
    """Processors that all its processes together may keep busy; no bound where there are no control groups of them."""
    seconds: float = 3600
    """Lifetime from when it came up, in seconds; then all is killed, and nothing starts any more."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not (value > 0 and math.isfinite(value)):
                raise UsageError(
                    f"A workspace's {field.name} must be a positive number, not {value!r}."
                )

    def of_each_process(self, *, grouped: bool) -> dict[str, int]:
        """Return resource limits by name; `grouped` where control groups bound the memory of all together."""
        each = {
            "RLIMIT_NPROC": int(self.processes),
            # Above what any of its file systems holds, so that those say that they are full.
            "RLIMIT_FSIZE": int((self.disk_mb + self.scratch_mb) * MB),
            "RLIMIT_NOFILE": OPEN_FILES,
            "RLIMIT_CORE": 0,
        }
        if not grouped:
            # Not the address space: runtimes reserve far more of it than they ever touch.
            each["RLIMIT_DATA"] = int(self.memory_mb * MB)
        return each
