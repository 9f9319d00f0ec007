"""verifiers 0.4, both ways: `VerifiersEnvironment` plays its tasksets, `hud_taskset` makes one of tasks of ours.

Its pins are not ours: `VerifiersEnvironment` runs it in a process of its own, with the interpreter of its virtual environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud_integrations.verifiers.environment import VerifiersEnvironment
    from hud_integrations.verifiers.taskset import hud_taskset

__all__ = ["VerifiersEnvironment", "hud_taskset"]

__getattr__ = lazy(__name__, {"VerifiersEnvironment": ".environment", "hud_taskset": ".taskset"})
