"""Traces of a training step: operations of every thread and of the GPU, for a browser's trace viewer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from hud.client import Client
from hud.errors import UsageError, reason_of

VIEWERS = "https://ui.perfetto.dev or chrome://tracing"


def check_profile(file: str | None, client: Client) -> None:
    """Raise `UsageError` if `file` cannot be written, or if another process computes the steps of `client`."""
    if file is None:
        return
    if client.embedded is None:
        raise UsageError(
            "--profile records the process that trains, and HUD_API_URL names a server. Unset it, or leave out --profile."
        )
    try:
        Path(file).open("ab").close()
    except OSError as error:
        raise UsageError(f"--profile {file}: {reason_of(error)}") from error
    # The profiler's library prints when it begins and ends; it reads this once.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


@contextmanager
def profiled(file: Path) -> Iterator[None]:
    """Write a trace of the block in Chrome's trace format, compressed where the file's name ends in `.gz`."""
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import profile, supported_activities

    with profile(
        activities=supported_activities(),  # type: ignore[no-untyped-call]
        experimental_config=_ExperimentalConfig(profile_all_threads=True),
    ) as trace:
        yield
    trace.export_chrome_trace(str(file))


def span(name: str) -> AbstractContextManager[object]:
    """Return a context that is a span of the trace, if one is recorded."""
    torch = sys.modules.get("torch")
    return nullcontext() if torch is None else torch.profiler.record_function(name)
