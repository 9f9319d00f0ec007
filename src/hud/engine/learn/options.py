"""What a trainer is told about memory and speed; nothing here changes what is learned, but for rounding."""

from __future__ import annotations

from dataclasses import dataclass, field

from hud.engine.learn.optimizer_state import OptimizerOptions


@dataclass(frozen=True)
class TrainerOptions:
    """How a trainer computes."""

    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    compile_layers: bool = False
    """Train with layers that `torch.compile` has worked on: minutes at first, then faster on a GPU."""
    recompute_layers: bool = False
    """Keep of each layer only what went in, and compute the rest again for its gradient: a third more work, a tenth of
    the memory."""
