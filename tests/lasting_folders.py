"""Folders that several tests of a process share."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

PARENT = "HUD_TEST_FOLDERS"
"""Environment variable of the folder that has them, which pytest removes; without it they go with the process."""


def lasting_folder(prefix: str, suffix: str = "") -> Path:
    """Return a new folder with a random name between `prefix` and `suffix`."""
    folder = tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=os.environ.get(PARENT))
    if PARENT not in os.environ:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
