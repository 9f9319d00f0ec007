"""A control group for one workspace: the kernel's bound on the memory and processes of all in it together.

Knows both versions of the kernel's interface. Where neither can be used (an ordinary user to whom nothing was
delegated), there is none, and limits of each process stand in.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
MEMBERSHIP = Path("/proc/self/cgroup")
_SPARE_PROCESSES = 16
"""So that process 1 can still start something in a workspace whose processes took all that they may."""
_PERIOD, _LEAST_QUOTA = 100_000, 1_000
"""Microseconds: of processor time, the kernel gives a quota for each period, and no less than a millisecond."""
_LEAVE_SECONDS = 30.0
"""Processes that took much memory take their time to give it back."""
_PREFIX = "hud-workspace"
_numbers = count()


class ControlGroup:
    """The folders, one for each of the kernel's hierarchies, that bound one workspace."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders

    @classmethod
    def create(
        cls, memory_bytes: int, processes: int, processors: float | None = None
    ) -> ControlGroup | None:
        """Return a new group with these limits, or None where this process may make none.

        Where processors are not among the controllers that it may use, nothing bounds them.
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

    def add(self, pid: int) -> None:
        """Put a process in; what it starts from then on is in, too."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(pid), encoding="ascii")

    def memory_ran_out(self) -> bool:
        """Tell whether the kernel killed something in it because its memory was used up."""
        for folder in self.folders:
            for file in ("memory.oom_control", "memory.events"):
                for line in _lines(folder / file):
                    name, _, count = line.partition(" ")
                    if name == "oom_kill" and int(count):
                        return True
        return False

    def remove(self) -> None:
        """Remove the group, whose processes are ending or have ended."""
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
            if name == "memory.swap.max":  # Kernels without swap have no limit of it.
                _write_if_there(folder / name, str(value))
            else:
                (folder / name).write_text(str(value), encoding="ascii")


def _hierarchies() -> tuple[Path | None, dict[str, Path]]:
    """Return where groups can be made: in the unified hierarchy, and in those of single controllers."""
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
    """Return the folder of group `path` where a hierarchy is mounted from its group `root` on."""
    inner = path.removeprefix(root.rstrip("/")) if path.startswith(root) else ""
    return Path(mounted) / inner.lstrip("/")


def _delegated(own: Path, top: Path) -> Path | None:
    """Return the nearest group that can hold others (it has no processes of its own) with both controllers."""
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
    """Remove the groups of processes that were killed before they could."""
    for folder in list(parent.glob(f"{_PREFIX}-*-*-*")):
        _, _, pid, started, _ = folder.name.split("-")
        if _started(int(pid)) != started:
            with suppress(OSError):
                folder.rmdir()


def _started(pid: int) -> str:
    """Return when a process started: with its number, its name for good."""
    told = _lines(Path(f"/proc/{pid}/stat"))
    return told[0].rpartition(")")[2].split()[19] if told else ""
