"""Processes of environments: the interpreter, and descriptions of exit statuses."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path

SHOWN = 2000
"""Characters of a process's last output in an error."""


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that can import `hud`, and the environment's variables."""

    python: Path
    variables: dict[str, str] = field(default_factory=dict, repr=False)


def told_exit(status: int, words: str) -> str:
    """Return a description of a process's end (`status` as in `subprocess`), with its last output."""
    how = f"its process exited with {status}"
    if status < 0:
        try:
            how = f"its process was killed by {signal.Signals(-status).name}"
        except ValueError:
            how = f"its process was killed by signal {-status}"
    words = words.strip()
    return f"{how}; it last said: {words[-SHOWN:]}" if words else how
