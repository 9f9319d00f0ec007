"""Processes of environments: the interpreter, where it is not this process's own, and descriptions of exit statuses."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path

SHOWN = 2000
"""Characters of a process's last output in an error."""


@dataclass(frozen=True)
class Interpreter:
    """An interpreter that can import `hud`, and every variable that the environment sees."""

    python: Path
    variables: dict[str, str] = field(default_factory=dict, repr=False)


def told_exit(status: int, words: str) -> str:
    """Say how a process ended (`status` as `subprocess` has it), with its last words."""
    how = f"its process exited with {status}"
    if status < 0:
        try:
            how = f"its process was killed by {signal.Signals(-status).name}"
        except ValueError:
            how = f"its process was killed by signal {-status}"
    words = words.strip()
    return f"{how}; it last said: {words[-SHOWN:]}" if words else how
