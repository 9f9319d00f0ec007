"""Capacity of this machine, as a worker reports it when it joins."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

_NVIDIA = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
_SECONDS = 10.0


def platform_tag() -> str:
    """Return the platform that installed packages are for: system, processor, Python, such as linux-x86_64-cp311."""
    version = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return f"{sys.platform}-{platform.machine().lower()}-{version}"


def measured(*, images: bool = False) -> dict[str, Any]:
    """Return `cpus`, `memory_mb`, `gpus`, `gpu_types`, `images` (True: it runs container images) and `platform`."""
    gpus = _gpus()
    return {
        "cpus": _cpus(),
        "memory_mb": _memory() >> 20,
        "gpus": len(gpus),
        "gpu_types": sorted(set(gpus)),
        "images": images,
        "platform": platform_tag(),
    }


def _cpus() -> float:
    """Cores that this process may use: of its CPU set, within its control group's quota."""
    cores = float(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdecimal() and period.strip().isdecimal():
        cores = min(cores, int(quota) / int(period))
    return cores


def _memory() -> int:
    """Bytes of memory: the machine's, within its control group's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdecimal() else total


def _gpus() -> list[str]:
    try:
        query = subprocess.run(
            _NVIDIA, capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in query.stdout.splitlines() if line.strip()]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
