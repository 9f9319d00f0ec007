"""TRL's `GRPOTrainer` over tasks of this library: `HudSpec`, and `hud_reward` as a reward function.

Needs `pip install trl` alongside `openhud[train]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud_integrations.trl.rewards import hud_reward
    from hud_integrations.trl.spec import HudSpec

__all__ = ["HudSpec", "hud_reward"]

__getattr__ = lazy(__name__, {"HudSpec": ".spec", "hud_reward": ".rewards"})
