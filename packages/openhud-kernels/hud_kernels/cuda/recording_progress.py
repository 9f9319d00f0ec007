"""Progress of recording decode steps: a line of a terminal that is overwritten, and a log record at the end."""

from __future__ import annotations

import logging
import sys

_log = logging.getLogger("hud.kernels")


def show_recording(done: int, total: int) -> None:
    """Show that `done` of `total` decode steps are recorded."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\rRecording decode steps: {done} of {total}", end=end, file=sys.stderr, flush=True)
    if done == total:
        _log.info("Recorded %d decode steps as CUDA graphs.", total)
