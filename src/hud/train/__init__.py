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
    ForwardBackwardRequest,
    ForwardBackwardResult,
    ForwardRequest,
    ForwardResult,
    LossesResult,
    LossFn,
    OptimStepRequest,
    OptimStepResult,
    TrainingDatum,
    TrainInput,
    TrajectoryPayload,
    TrajectorySample,
)

if TYPE_CHECKING:
    from hud.train.client import TrainingClient

_HOMES = {
    "TrainingClient": "hud.train.client",
}

__all__ = [
    "AdvantageOptions",
    "BackwardRequest",
    "BuiltinLoss",
    "CheckpointResponse",
    "DatumTensors",
    "ForwardBackwardRequest",
    "ForwardBackwardResult",
    "ForwardRequest",
    "ForwardResult",
    "LossFn",
    "LossesResult",
    "OptimStepRequest",
    "OptimStepResult",
    "TrainInput",
    "TrainingClient",
    "TrainingDatum",
    "TrajectoryPayload",
    "TrajectorySample",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hud.train' has no attribute {name!r}")
