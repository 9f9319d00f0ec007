"""Runtimes: they open the environment of a rollout.

A runtime is a callable of a task; it returns an async context manager whose value is the `Connection`.
"""

from hud.eval.runtimes.fork import ForkRuntime
from hud.eval.runtimes.hosted import HostedRuntime
from hud.eval.runtimes.local import LocalRuntime
from hud.eval.runtimes.per_source import PerSource
from hud.eval.runtimes.remote import Runtime
from hud.eval.runtimes.shared import Shared
from hud.eval.runtimes.subprocess_runtime import SubprocessRuntime
from hud.eval.runtimes.tunnelled import HUDRuntime

__all__ = [
    "ForkRuntime",
    "HUDRuntime",
    "HostedRuntime",
    "LocalRuntime",
    "PerSource",
    "Runtime",
    "Shared",
    "SubprocessRuntime",
]
