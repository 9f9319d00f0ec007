"""Runtimes of one machine: where a rollout's environment lives.

A runtime is a callable of a task; it returns an async context manager whose value is the `Connection`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hud.eval.runtimes.fork import ForkRuntime
from hud.eval.runtimes.hosted import HostedRuntime
from hud.eval.runtimes.local import LocalRuntime
from hud.eval.runtimes.remote import Runtime, SubprocessRuntime
from hud.eval.runtimes.shared import Shared
from hud.eval.runtimes.tunnelled import HUDRuntime

if TYPE_CHECKING:
    from hud.environment import Task


def default_runtime(tasks: Sequence[Task]) -> LocalRuntime:
    """Return the runtime for tasks where the caller named none: their live environments, in this process."""
    del tasks
    return LocalRuntime()


__all__ = [
    "ForkRuntime",
    "HUDRuntime",
    "HostedRuntime",
    "LocalRuntime",
    "Runtime",
    "Shared",
    "SubprocessRuntime",
    "default_runtime",
]
