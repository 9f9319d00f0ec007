"""Configuration of a platform: its folders, its database, and which of its parts run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class BuildLimits:
    """Limits of one build of an environment."""

    seconds: float = 1800.0
    files: int = 20_000
    """Files and folders of its archive."""
    bytes: int = 2 << 30
    """Of them together, unpacked."""
    archive_bytes: int = 512 << 20
    """Of the archive as it is sent."""


@dataclass(frozen=True)
class PlatformConfig:
    """The configuration of one platform; the embedded one is all defaults."""

    home: Path
    """Models, checkpoints, environments and, unless said otherwise, the database and the blobs."""
    database: str | None = None
    """URL of the database (`postgresql+psycopg://...`); None: SQLite in `home`."""
    storage: str | None = None
    """URL of the folder for blobs (`s3://bucket/prefix`); None: `home/blobs`."""
    keys: bool = False
    """True: every request needs a key. False: whoever can reach the platform is its one local team."""
    engine: Literal["inline", "worker"] = "inline"
    """Process in which policies sample and train: this one, or one for each model."""
    engines: int = 4
    """Most processes for models; more models than that share, or make room where they are idle."""
    rollout_workers: int = 0
    """Processes that play the rollouts which clients submit."""
    url: str = ""
    """Address of the server; processes that it starts call it there."""
    connections: int = 4096
    """Most HTTP connections and WebSockets at a time; fewer where the process may open fewer files."""
    builds: BuildLimits = BuildLimits()
    """Limits of one build of an environment."""
