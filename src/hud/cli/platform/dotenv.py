"""The user's settings file: written atomically, with mode 0600."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hud.errors import UsageError


def keep(home: Path, values: dict[str, str]) -> Path:
    """Set `KEY=VALUE` lines of `home/.env`; other lines are unchanged. Returns the file."""
    path = home / ".env"
    try:
        home.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = [line for line in lines if _name(line) not in values]
        text = "\n".join([*kept, *(f"{name}={value}" for name, value in values.items())]) + "\n"
        handle, temporary = tempfile.mkstemp(dir=home, prefix=".env-")  # Created with mode 0600.
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
    return path


def _name(line: str) -> str:
    return line.strip().removeprefix("export ").partition("=")[0].strip()
