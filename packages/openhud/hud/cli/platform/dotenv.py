"""The user's settings file: written atomically, with mode 0600."""

from __future__ import annotations

from pathlib import Path

from hud.durable_files import PRIVATE, write_file
from hud.errors import UsageError


def keep(home: Path, values: dict[str, str]) -> Path:
    """Set `KEY=VALUE` lines of `home/.env`; other lines are unchanged. Returns the file."""
    path = home / ".env"
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        unchanged = [line for line in lines if _name(line) not in values]
        text = (
            "\n".join([*unchanged, *(f"{name}={value}" for name, value in values.items())]) + "\n"
        )
        write_file(path, text.encode(), PRIVATE)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from error
    return path


def _name(line: str) -> str:
    return line.strip().removeprefix("export ").partition("=")[0].strip()
