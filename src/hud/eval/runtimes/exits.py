"""Descriptions of exit statuses."""

from __future__ import annotations

import signal

SHOWN = 2000
"""Characters of a process's last output in an error."""


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
