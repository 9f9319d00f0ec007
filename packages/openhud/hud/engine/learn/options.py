"""Memory and speed options of a trainer; they change results by rounding only."""

from __future__ import annotations

from dataclasses import dataclass, field

from hud.engine.learn.optimizer_state import OptimizerOptions


@dataclass(frozen=True)
class TrainerOptions:
    """Memory and speed of a trainer."""

    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)
    compile_layers: bool = False
    """Train with layers compiled by `torch.compile`: minutes of compilation, then faster on a GPU."""
    recompute_layers: bool = False
    """Gradient checkpointing: store only each layer's input and recompute the rest: a third more work, a tenth of the
    memory."""
