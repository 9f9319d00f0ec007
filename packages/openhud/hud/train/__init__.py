"""Training on what evaluations captured: the client, the loop, recipes and their settings. The mathematics is in `hud.learning`.

`TrainingClient` and the types need no torch; the losses load it when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hud.lazy import lazy
from hud.learning.losses.config import available_losses, parse_loss
from hud.learning.schedules import learning_rate
from hud.learning.wire_types import (
    AdvantageOptions,
    BackwardRequest,
    BuiltinLoss,
    CheckpointResponse,
    DatumTensors,
    DiscardedGradient,
    ForwardBackwardRequest,
    ForwardBackwardResult,
    ForwardRequest,
    ForwardResult,
    LossesResult,
    LossFn,
    OptimStepRequest,
    OptimStepResult,
    StepResult,
    TrainingDatum,
    TrainInput,
    TrajectoryPayload,
    TrajectorySample,
)

if TYPE_CHECKING:
    from hud.learning.advantages import compute_advantages
    from hud.learning.datums import Batch, Datum, make_batch, payload_of
    from hud.train.client import TrainingClient

_HOMES = {
    "TrainingClient": "hud.train.client",
    "Batch": "hud.learning.datums",
    "Datum": "hud.learning.datums",
    "compute_advantages": "hud.learning.advantages",
    "make_batch": "hud.learning.datums",
    "payload_of": "hud.learning.datums",
}

__all__ = [
    "AdvantageOptions",
    "BackwardRequest",
    "Batch",
    "BuiltinLoss",
    "CheckpointResponse",
    "Datum",
    "DatumTensors",
    "DiscardedGradient",
    "ForwardBackwardRequest",
    "ForwardBackwardResult",
    "ForwardRequest",
    "ForwardResult",
    "LossFn",
    "LossesResult",
    "OptimStepRequest",
    "OptimStepResult",
    "StepResult",
    "TrainInput",
    "TrainingClient",
    "TrainingDatum",
    "TrajectoryPayload",
    "TrajectorySample",
    "available_losses",
    "compute_advantages",
    "learning_rate",
    "make_batch",
    "parse_loss",
    "payload_of",
]

__getattr__ = lazy(__name__, _HOMES)
