"""Custom losses: their type, and validation of their results. torch is imported when a loss runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hud.errors import UsageError
from hud.learning.wire_types import DatumTensors

if TYPE_CHECKING:
    from torch import Tensor

CustomLoss = Callable[
    [list[DatumTensors], "list[Tensor]"], "tuple[Tensor, Mapping[str, float | Tensor]]"
]
"""`(data, logprobs) -> (loss, metrics)`: `logprobs[d]` is a (T,) float32 leaf that requires grad."""


def checked_loss(returned: Any) -> tuple[Tensor, dict[str, float]]:
    """Return the loss and its metrics as numbers. Raises `UsageError` for anything but `(loss, metrics)`."""
    import torch

    if not isinstance(returned, tuple) or len(returned) != 2:
        raise UsageError(
            f"The custom loss returned {_named(returned)}; return (loss, metrics), as in `return loss, {{}}`."
        )
    loss, metrics = returned
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise UsageError(
            "The loss of a custom loss is one number, a tensor that depends on the logprobs it was given; it returned "
            f"{_named(loss)}."
        )
    if not isinstance(metrics, Mapping):
        raise UsageError(
            f"The metrics of a custom loss are a dictionary from names to numbers, not {_named(metrics)}."
        )
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            numbers[str(name)] = float(value.item() if isinstance(value, torch.Tensor) else value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"The metric {name!r} of a custom loss is {_named(value)}, which is no number."
            ) from error
    return loss, numbers


def _named(value: Any) -> str:
    import torch

    if isinstance(value, torch.Tensor):
        depends = "" if value.requires_grad else " that does not depend on the logprobs"
        return f"a tensor of shape {tuple(value.shape)}{depends}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return f"a {type(value).__name__}"
