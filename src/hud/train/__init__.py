"""Training on what evaluations captured: the client, its data types, advantages, losses and the loop.

`TrainingClient` and the types need no torch; the losses load it when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from hud.train.types import (
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
    from hud.train.advantages import compute_advantages
    from hud.train.batches import Batch, make_batch, payload_of
    from hud.train.client import TrainingClient
    from hud.train.datums import Datum
    from hud.train.loss_config import available_losses, parse_loss
    from hud.train.schedules import learning_rate

_HOMES = {
    "TrainingClient": "hud.train.client",
    "Batch": "hud.train.batches",
    "Datum": "hud.train.datums",
    "available_losses": "hud.train.loss_config",
    "compute_advantages": "hud.train.advantages",
    "learning_rate": "hud.train.schedules",
    "make_batch": "hud.train.batches",
    "parse_loss": "hud.train.loss_config",
    "payload_of": "hud.train.batches",
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


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hud.train' has no attribute {name!r}")
