"""OpenHUD: turn agent evaluations into better agents.

Names are imported at first use, so that `import hud` is fast and loads neither torch nor a web framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud.client.outcomes import record_outcome
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
    "record_outcome",
    "run",
]

_ROOMS = {"agents", "capabilities", "clients", "environment", "eval", "graders", "trace", "train"}
_load = lazy(
    __name__,
    dict.fromkeys(__all__, "hud.eval")
    | {
        "Environment": "hud.environment",
        "Trace": "hud.trace",
        "TrainingClient": "hud.train",
        "connect": "hud.clients",
        "instrument": "hud.trace.recording.instrument",
        "record_outcome": "hud.client.outcomes",
        "run": "hud.synchronous",
    },
)


def __getattr__(name: str) -> Any:
    return importlib.import_module(f"hud.{name}") if name in _ROOMS else _load(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS, "__version__"})
