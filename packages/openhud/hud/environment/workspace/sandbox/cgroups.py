"""The control group of a workspace: limits on the memory, processes and CPU of all its processes together.

Supports cgroup v1 and v2. If neither is usable (an unprivileged user without delegation), limits per process apply.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
MEMBERSHIP = Path("/proc/self/cgroup")
_SPARE_PROCESSES = 16
"""Processes beyond the limit, so that process 1 can still start one in a workspace that reached it."""
_PERIOD, _LEAST_QUOTA = 100_000, 1_000
"""Period of CPU quotas, in microseconds; the kernel's smallest quota is a millisecond."""
_LEAVE_SECONDS = 30.0
"""Time-out for killed processes to free their memory, in seconds."""
_PREFIX = "hud-workspace"
_numbers = count()


class ControlGroup:
    """A workspace's control group: its folder in each hierarchy."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders

    @classmethod
    def create(
        cls, memory_bytes: int, processes: int, processors: float | None = None
    ) -> ControlGroup | None:
        """Return a new group with these limits, or None without the permission.

        Without access to the CPU controller, CPU use is unlimited.
        """
        processes += _SPARE_PROCESSES
        quota = -1 if processors is None else max(_LEAST_QUOTA, round(processors * _PERIOD))
        unified, separate = _hierarchies()
        group = cls([])
        try:
            if {"memory", "pids"} <= separate.keys():
                group._add(separate["memory"], {"memory.limit_in_bytes": memory_bytes})
                group._add(separate["pids"], {"pids.max": processes})
            elif unified is not None:
                bounds = {"memory.max": memory_bytes, "memory.swap.max": 0, "pids.max": processes}
                group._add(unified, bounds)
                if quota > 0:
                    _write_if_there(group.folders[0] / "cpu.max", f"{quota} {_PERIOD}")
                return group
            else:
                return None
        except OSError:
            group.remove()
            return None
        if quota > 0 and "cpu" in separate:
            with suppress(OSError):
                group._add(separate["cpu"], {"cpu.cfs_quota_us": quota})
        return group

    def entrances(self, stack: ExitStack) -> list[int]:
        """Return descriptors through which a process joins, by writing 0 to each; `stack` closes them.

        Its later children belong to the group, too. With version 1 a thread that moves itself waits for nothing, while
        moving another process waits for the kernel's readers: 7 to 17 ms were measured.
        """
        descriptors = []
        for folder in self.folders:
            tasks = folder / "tasks"
            entrance = tasks if tasks.exists() else folder / "cgroup.procs"
            descriptors.append(os.open(entrance, os.O_WRONLY | os.O_CLOEXEC))
            stack.callback(os.close, descriptors[-1])
        return descriptors

    def memory_ran_out(self) -> bool:
        """Return True if the kernel killed one of its processes for lack of memory."""
        for folder in self.folders:
            for file in ("memory.oom_control", "memory.events"):
                for line in _lines(folder / file):
                    name, _, count = line.partition(" ")
                    if name == "oom_kill" and int(count):
                        return True
        return False

    def remove(self) -> None:
        """Remove the group, whose processes are being killed or have ended."""
        deadline = time.monotonic() + _LEAVE_SECONDS
        pause = 0.001
        for folder in self.folders:
            while not _removed(folder) and time.monotonic() < deadline:
                time.sleep(pause)
                pause = min(pause * 1.5, 0.1)

    def _add(self, parent: Path, limits: dict[str, int]) -> None:
        _sweep(parent)
        folder = parent / f"{_PREFIX}-{os.getpid()}-{_started(os.getpid())}-{next(_numbers)}"
        folder.mkdir()
        self.folders.append(folder)
        for name, value in limits.items():
            if name == "memory.swap.max":  # Kernels without swap have no such file.
                _write_if_there(folder / name, str(value))
            else:
                (folder / name).write_text(str(value), encoding="ascii")


def _hierarchies() -> tuple[Path | None, dict[str, Path]]:
    """Return the parent folders of groups: in the unified hierarchy, and in those of single controllers."""
    own: dict[str, str] = {}
    for line in _lines(MEMBERSHIP):
        _, controllers, path = line.split(":", 2)
        own.update(dict.fromkeys(controllers.split(","), path))
    unified: Path | None = None
    separate: dict[str, Path] = {}
    for line in _lines(MOUNTS):
        fields, _, rest = line.partition(" - ")
        kind, _, options = rest.split(" ", 2)
        root, mounted = fields.split(" ")[3:5]
        if kind == "cgroup":
            for controller in options.split(","):
                if controller in own:
                    separate[controller] = _below(mounted, root, own[controller])
        elif kind == "cgroup2" and "" in own:
            unified = _delegated(_below(mounted, root, own[""]), Path(mounted))
    return unified, separate


def _below(mounted: str, root: str, path: str) -> Path:
    """Return the folder of group `path` in a hierarchy that is mounted from its group `root`."""
    inner = path.removeprefix(root.rstrip("/")) if path.startswith(root) else ""
    return Path(mounted) / inner.lstrip("/")


def _delegated(own: Path, top: Path) -> Path | None:
    """Return the nearest ancestor that can contain groups (without processes) and has both controllers."""
    for folder in [own.parent, *own.parent.parents] if own != top else [top]:
        if not folder.is_relative_to(top):
            return None
        handed_down = " ".join(_lines(folder / "cgroup.subtree_control")).split()
        if {"memory", "pids"} <= set(handed_down) and os.access(folder, os.W_OK):
            return folder
    return None


def _write_if_there(file: Path, value: str) -> None:
    if file.exists():
        file.write_text(value, encoding="ascii")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _sweep(parent: Path) -> None:
    """Remove the groups of killed owner processes."""
    for folder in list(parent.glob(f"{_PREFIX}-*-*-*")):
        _, _, pid, started, _ = folder.name.split("-")
        if _started(int(pid)) != started:
            with suppress(OSError):
                folder.rmdir()


def _started(pid: int) -> str:
    """Return the start time of a process: with its id, it identifies the process uniquely."""
    lines = _lines(Path(f"/proc/{pid}/stat"))
    return lines[0].rpartition(")")[2].split()[19] if lines else ""
