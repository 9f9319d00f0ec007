"""Configuration of a platform: folders, database, and active parts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class BuildLimits:
    """Limits of one build of an environment."""

    seconds: float = 1800.0
    files: int = 20_000
    """Maximum number of files and folders in the archive."""
    bytes: int = 2 << 30
    """Maximum total size, unpacked."""
    archive_bytes: int = 512 << 20
    """Maximum size of the archive as sent."""


@dataclass(frozen=True)
class PlatformConfig:
    """Configuration of one platform; the defaults are those of an embedded one."""

    home: Path
    """Folder of models, checkpoints, environments and, by default, the database and the blobs."""
    database: str | None = None
    """URL of the database (`postgresql+psycopg://...`); None: SQLite in `home`."""
    storage: str | None = None
    """URL of the folder for blobs (`s3://bucket/prefix`); None: `home/blobs`."""
    keys: bool = False
    """True: every request needs a key. False: every client acts as the local team."""
    engine: Literal["inline", "worker"] = "inline"
    """Process in which policies sample and train: this one, or a worker process for each model."""
    engines: int = 4
    """Maximum number of worker processes; with more models, idle processes are ended, or models share one."""
    rollout_workers: int = 0
    """Number of processes that play submitted rollouts."""
    rollout_lease_seconds: float = 30.0
    """Time after which a rollout whose worker is not heard of goes to another; workers report every 2 seconds."""
    url: str = ""
    """URL of the server for the processes that it starts."""
    connections: int = 4096
    """Maximum number of concurrent HTTP connections and WebSockets; reduced to the process's limit on open files."""
    builds: BuildLimits = BuildLimits()
    """Limits of one build of an environment."""
