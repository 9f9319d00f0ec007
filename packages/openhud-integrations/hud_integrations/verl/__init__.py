"""verl's agent loop over tasks of this library: `HudAgentLoop`, and `HUDRollout`, which plays a batch by itself.

Needs `pip install verl` alongside `openhud[train]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.lazy import lazy

if TYPE_CHECKING:
    from hud_integrations.verl.agent_loop import HudAgentLoop
    from hud_integrations.verl.dataset import write_parquet
    from hud_integrations.verl.rollout import HUDRollout

__all__ = ["HUDRollout", "HudAgentLoop", "write_parquet"]

__getattr__ = lazy(
    __name__,
    {"HudAgentLoop": ".agent_loop", "HUDRollout": ".rollout", "write_parquet": ".dataset"},
)
