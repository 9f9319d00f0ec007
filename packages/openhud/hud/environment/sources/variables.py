"""Variables of an environment: the `.env` file in the folder of its source.

Its code reads them from `os.environ`, in evaluations, training and servers on this machine; `hud deploy` sends them with
the build, for the platform and the workers of its fleet.
"""

from __future__ import annotations

import os
from pathlib import Path

from hud.dotenv import read_dotenv
from hud.environment.processes.secret_variables import set_variable

_set: dict[str, str] = {}
"""Variables that `set_variables` has set, for another environment's value to replace."""


def file_variables(folder: Path) -> dict[str, str]:
    """Return the variables of a folder's `.env`, without settings of this machine (`HUD_...`)."""
    pairs = read_dotenv(folder / ".env")
    return {name: value for name, value in pairs.items() if not name.startswith("HUD_")}


def set_variables(folder: Path) -> None:
    """Set a folder's variables in this process; those that the process was started with take precedence."""
    for name, value in file_variables(folder).items():
        if os.environ.get(name) in (None, _set.get(name)):
            _set[name] = value
            set_variable(name, value)
