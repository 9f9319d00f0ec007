"""Free memory of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


class HostMemory:
    """Memory of this machine, within the limits of the process's control groups."""

    def __init__(
        self, processes: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
    ) -> None:
        self._processes, self._groups = processes, groups

    def free(self) -> int:
        """Return the bytes that can be taken without swapping, the least of the machine's and each group's."""
        return max(0, min([self._available(), *self._group_room()]))

    def _available(self) -> int:
        try:
            lines = (self._processes / "meminfo").read_text(encoding="ascii").splitlines()
        except OSError:  # No Linux: what runs beside this process is not known.
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        sizes = dict(line.split(":", 1) for line in lines)
        return int(sizes["MemAvailable"].split()[0]) * 1024

    def _group_room(self) -> Iterator[int]:
        """Yield what each control group of the process, and each one above it, has left."""
        try:
            lines = (self._processes / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                root, names = self._groups, ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                root = self._groups / "memory"
                names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            else:
                continue
            # In a container the path may be the host's: then the root is the container's own group.
            group = root / path.strip("/")
            for folder in (group, *group.parents):
                if folder.is_relative_to(root) and (room := _room_in(folder, *names)) is not None:
                    yield room


def _room_in(folder: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    """Return a control group's limit less its usage, page cache aside; None without a limit."""
    try:
        most = (folder / limit).read_text(encoding="ascii").strip()
        if most == "max":
            return None
        used = int((folder / usage).read_text(encoding="ascii"))
        stat = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    cached = next((int(line.split()[1]) for line in stat if line.split()[0] == reclaimable), 0)
    return int(most) - used + cached
