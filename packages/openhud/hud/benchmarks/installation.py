"""Installation of the packages that ship benchmarks, into the Python that runs this."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Iterable

from hud.benchmarks.benchmark import Package
from hud.benchmarks.registry import benchmarks
from hud.errors import HudError, NotFoundError, UsageError

ALL = "all"


def packages(names: Iterable[str]) -> list[Package]:
    """Return the packages of benchmarks: by name, by the part before a slash, or `all`; raises `NotFoundError`."""
    by_name: dict[str, Package] = {}
    for name in names:
        ship = [
            benchmark.package
            for benchmark in benchmarks()
            if name in (ALL, benchmark.name, benchmark.name.partition("/")[0])
        ]
        if not ship:
            raise NotFoundError(f"There is no benchmark {name!r}: hud eval --benchmark list")
        by_name |= {package.name: package for package in ship}
    return list(by_name.values())


def pip_arguments(package: Package) -> list[list[str]]:
    """Return the arguments of `pip install`, once for each call that it takes."""
    if not package.bare:
        return [[package.pin]]
    return [["--no-deps", package.pin], *([list(package.beside)] if package.beside else [])]


def install(package: Package) -> None:
    """Install a package at its version.

    Raises `UsageError` where this Python has no pip, and `HudError` where pip fails, which prints why.
    """
    calls = pip_arguments(package)
    if importlib.util.find_spec("pip") is None:
        typed = " && ".join(f"uv pip install {shlex.join(arguments)}" for arguments in calls)
        raise UsageError(f"{sys.executable} has no pip; with uv: {typed}")
    for arguments in calls:
        # pip would list the dependencies that a bare package declares and is not used with.
        quietly = ["--quiet", "--no-warn-conflicts"]
        command = [sys.executable, "-m", "pip", "install", *quietly, *arguments]
        if subprocess.run(command, check=False).returncode != 0:
            raise HudError(f"{package.pin} could not be installed: {shlex.join(command)}")
