"""Inspect: samples of its tasks as tasks of ours, and jobs as its evaluation logs.

Needs `pip install inspect-ai`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud_integrations.inspect.environment import InspectEnvironment
    from hud_integrations.inspect.eval_log import EvalLogFile

__all__ = ["EvalLogFile", "InspectEnvironment"]

__getattr__ = lazy(__name__, {"EvalLogFile": ".eval_log", "InspectEnvironment": ".environment"})
