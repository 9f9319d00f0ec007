"""Plugs: objects that packages, this distribution's and others, join by entry points of a group.

A source tree has the entry points of its `pyproject.toml`, installed or not.
"""

from __future__ import annotations

import functools
import os
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from hud.errors import UsageError

OWN = "openhud"
T = TypeVar("T")
_CHECKOUT = Path(__file__).parents[3]


def plugs(group: str) -> dict[str, metadata.EntryPoint]:
    """Return the entry points of a group by name, those of this distribution first; nothing is imported.

    Raises `UsageError` for a name that two distributions use.
    """
    return dict(_plugs(group, tuple((folder, _mtime(folder)) for folder in sys.path)))


Folders = tuple[tuple[str, int | None], ...]
"""Folders of `sys.path` with the times of their last change: another distribution changes one of them."""


@functools.lru_cache(maxsize=64)
def _plugs(group: str, folders: Folders) -> dict[str, metadata.EntryPoint]:
    points = [point for point in own_entry_points() if point.group == group]
    installed = _installed(folders).select(group=group)
    points += [point for point in installed if _distribution(point) != OWN]
    by_name: dict[str, metadata.EntryPoint] = {}
    for point in points:
        other = by_name.setdefault(point.name, point)
        if other.value != point.value:
            raise UsageError(
                f"Two distributions register {point.name!r} as {group}: {_distribution(other)} "
                f"({other.value}) and {_distribution(point)} ({point.value}). Uninstall one of them."
            )
    return by_name


def load(point: metadata.EntryPoint, kind: type[T]) -> T:
    """Import an entry point's object.

    Raises `UsageError` where that fails or gives no `kind`, with the distribution that it came from.
    """
    try:
        plug = point.load()
    except Exception as error:
        raise UsageError(
            f"{point.group} {point.name!r} of {_distribution(point)} cannot be imported ({point.value}): "
            f"{type(error).__name__}: {error}. Install the distribution again, or uninstall it."
        ) from error
    if not isinstance(plug, kind):
        raise UsageError(
            f"{point.group} {point.name!r} of {_distribution(point)} ({point.value}) is of type {type(plug).__name__}; "
            f"it must be {kind.__module__}.{kind.__qualname__}."
        )
    return plug


def load_all(group: str, kind: type[T]) -> dict[str, T]:
    """Import the objects of a group's entry points; returns them by name. Raises `UsageError` as `plugs` and `load` do."""
    return {name: load(point, kind) for name, point in plugs(group).items()}


@functools.cache
def own_entry_points() -> list[metadata.EntryPoint]:
    """Return the entry points of this distribution: those of the source tree that runs, else the installed ones."""
    groups = _project().get("entry-points")
    if groups is not None:
        return [
            metadata.EntryPoint(name, value, group)
            for group, values in groups.items()
            for name, value in values.items()
        ]
    return list(metadata.distribution(OWN).entry_points)


@functools.lru_cache(maxsize=4)
def _installed(_folders: Folders) -> metadata.EntryPoints | metadata.SelectableGroups:
    """Return the entry points of all distributions. Reading those of 200 takes 15 ms, and a command asks for several groups."""
    return metadata.entry_points()


def _mtime(folder: str) -> int | None:
    """Return when an entry of a folder came or went, in nanoseconds; None without the folder."""
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return None


def own_packages() -> set[str]:
    """Return the names of this distribution's import packages."""
    return {"hud", *(point.value.split(":")[0].split(".")[0] for point in own_entry_points())}


def _project() -> dict[str, Any]:
    """Return the `project` table of the source tree; empty for an installed package."""
    try:
        project: dict[str, Any] = tomllib.loads((_CHECKOUT / "pyproject.toml").read_text())[
            "project"
        ]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        return {}
    return project if project.get("name") == OWN else {}


def _distribution(point: metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else OWN
