"""OpenHUD: turn agent evaluations into better agents.

Names load when they are first used, so that `import hud` stays fast and pulls in neither torch nor a web
framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hud.clients import connect
    from hud.environment import Environment
    from hud.eval import (
        Chat,
        ComposeProject,
        ForkRuntime,
        Grade,
        HostedRuntime,
        HUDRuntime,
        Job,
        LocalRuntime,
        Run,
        Runtime,
        RuntimeConfig,
        RuntimeGPU,
        RuntimeLimits,
        RuntimeResources,
        RuntimeTPU,
        SubprocessRuntime,
        SyncPlan,
        Task,
        Taskset,
    )
    from hud.synchronous import run
    from hud.trace import Trace
    from hud.trace.recording.instrument import instrument
    from hud.train import TrainingClient

__version__ = "0.1.0"

_HOMES = {
    "Environment": "hud.environment",
    "Task": "hud.eval",
    "Taskset": "hud.eval",
    "Job": "hud.eval",
    "Run": "hud.eval",
    "Trace": "hud.trace",
    "Grade": "hud.eval",
    "TrainingClient": "hud.train",
    "LocalRuntime": "hud.eval",
    "ForkRuntime": "hud.eval",
    "HUDRuntime": "hud.eval",
    "HostedRuntime": "hud.eval",
    "SubprocessRuntime": "hud.eval",
    "SyncPlan": "hud.eval",
    "Runtime": "hud.eval",
    "Chat": "hud.eval",
    "ComposeProject": "hud.eval",
    "RuntimeConfig": "hud.eval",
    "RuntimeGPU": "hud.eval",
    "RuntimeLimits": "hud.eval",
    "RuntimeResources": "hud.eval",
    "RuntimeTPU": "hud.eval",
    "instrument": "hud.trace.recording.instrument",
    "connect": "hud.clients",
    "run": "hud.synchronous",
}
_ROOMS = {"agents", "capabilities", "clients", "environment", "eval", "graders", "trace", "train"}

__all__ = [
    "Chat",
    "ComposeProject",
    "Environment",
    "ForkRuntime",
    "Grade",
    "HUDRuntime",
    "HostedRuntime",
    "Job",
    "LocalRuntime",
    "Run",
    "Runtime",
    "RuntimeConfig",
    "RuntimeGPU",
    "RuntimeLimits",
    "RuntimeResources",
    "RuntimeTPU",
    "SubprocessRuntime",
    "SyncPlan",
    "Task",
    "Taskset",
    "Trace",
    "TrainingClient",
    "connect",
    "instrument",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"hud.{name}")
    raise AttributeError(f"module 'hud' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS, "__version__"})
