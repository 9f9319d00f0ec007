"""The recorder that runs are written with where the caller names none."""

from __future__ import annotations

from hud.trace.recording.recorder import NullRecorder, Recorder

__all__ = ["NullRecorder", "Recorder", "default_recorder"]


def default_recorder() -> Recorder:
    """Return the recorder of this process: the platform's, in this process or over HTTP."""
    from hud import client  # Loads serialization, which a library user may not need.

    return client.recorder()
