"""Folders that several tests of a process share: removed at its end."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path


def lasting_folder(prefix: str, suffix: str = "") -> Path:
    """Return a new folder with a random name between `prefix` and `suffix`."""
    folder = tempfile.mkdtemp(prefix=prefix, suffix=suffix)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
