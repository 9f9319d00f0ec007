"""The source files of all packages, by import name."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(ROOT.glob("packages/*/hud*"))
"""Folder of each import package; `hud` is the core."""
CORE = ROOT / "packages" / "openhud" / "hud"


def rooms() -> list[str]:
    """Return the folders of every import package, such as `hud/eval`."""
    return sorted(
        place(folder)
        for package in PACKAGES
        for folder in package.iterdir()
        if folder.is_dir() and folder.name != "__pycache__"
    )


def place(path: Path) -> str:
    """Return a path from its import name on, such as `hud/eval/run.py`."""
    return path.relative_to(ROOT / "packages").as_posix().partition("/")[2]


def folder_of(room: str) -> Path:
    """Return the path of a room that `rooms` names, or of a file, such as `hud/eval/run.py`."""
    package = next(path for path in PACKAGES if path.name == room.partition("/")[0])
    return package.parent / room


def files(suffix: str = "py") -> list[Path]:
    """Return the files of all packages with an ending."""
    return sorted(path for package in PACKAGES for path in package.rglob(f"*.{suffix}"))
