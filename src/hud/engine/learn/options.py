"""Memory and speed options of a trainer; they change results by rounding only."""

from __future__ import annotations

from dataclasses import dataclass, field

from hud.engine.learn.optimizer_state import OptimizerOptions


@dataclass(frozen=True)
class TrainerOptions:
    """Memory and speed of a trainer."""

    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    compile_layers: bool = False
    """Train with layers that `torch.compile` has worked on: minutes at first, then faster on a GPU."""
    recompute_layers: bool = False
    """Keep of each layer only what went in, and compute the rest again for its gradient: a third more work, a tenth of
    the memory."""
