"""Path of an environment's source, by which another process loads it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hud.environment import Environment
from hud.errors import UsageError


def path_of(source: str | Path | Environment) -> str:
    """Return the source for another process: `path`, or `path:attribute` for a file with several environments.

    Raises `UsageError` for an environment without a file.
    """
    if not isinstance(source, Environment):
        return str(source)
    path = source.source_file
    if path is None or not os.path.exists(path):
        raise UsageError(
            f"Environment {source.name!r} was not made in a file, so no other process can load it; write it to a "
            "file and pass its path, or use LocalRuntime."
        )
    for module in list(sys.modules.values()):
        # A file loaded twice is two modules.
        if getattr(module, "__file__", None) == path:
            held = {
                name: environment
                for name, environment in vars(module).items()
                if isinstance(environment, Environment)
            }
            names = [name for name, environment in held.items() if environment is source]
            if names and len(set(map(id, held.values()))) > 1:
                return f"{path}:{names[0]}"
    return path
