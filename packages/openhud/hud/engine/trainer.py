"""The port of trainers: gradients of losses over datums, optimizer steps, and the state between them.

A trainer belongs to the weights of one model. Calls come one at a time, from one thread; the caller pauses sampling while
`optim_step` or `load_state_dict` changes the weights. Implementations: `learn.local_trainer.LocalTrainer` in one process,
`learn.distributed.DistributedTrainer` over FSDP2 ranks, and those of training backends (`hud.engine.backends`).
`tests/ports/test_trainer_port.py` is their conformance suite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from torch import Tensor

from hud.engine.decoder import Decoder
from hud.learning.datums import Datum, Floats
from hud.learning.wire_types import OptimizerName


class Trainer(Protocol):
    """Accumulates gradients and steps."""

    @property
    def pending(self) -> bool:
        """True when something was accumulated since the last step."""

    @property
    def last_logprobs(self) -> list[Floats]:
        """Logprobs of the datums of the last `forward_backward`; see `forward`."""

    def forward_backward(
        self,
        datums: Sequence[Datum],
        loss_fn: str = "importance_sampling",
        config: Mapping[str, float] | None = None,
        *,
        num_substeps: int = 1,
    ) -> dict[str, float]:
        """Add the gradient of a loss over `datums` to what is accumulated; return its metrics.

        `num_substeps`: at least so many passes; it never changes the gradient. Raises `UsageError` for an unknown loss or a term
        that these weights cannot have, and `ConflictError` for a loss that is not finite, or another normalization than before.
        """

    def forward(self, datums: Sequence[Datum]) -> list[Floats]:
        """Return, for each datum, (T,) fp32 logprobs of its tokens under the weights now; 0 if the mask is 0."""

    def backward(
        self, datums: Sequence[Datum], weights: Sequence[Sequence[float] | Floats]
    ) -> dict[str, float]:
        """Accumulate the gradient of -Σ w lp: with w = -dC/dlp, that of the caller's own loss C.

        Weights of tokens that were not sampled have no effect; `ignored_weights:sum` counts them.
        Raises `UsageError` for weights that are not finite, or not one for each token.
        """

    def optim_step(
        self,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        optimizer: OptimizerName = "adamw",
    ) -> dict[str, float]:
        """Apply the accumulated gradient by AdamW, clear it and return the step's metrics. `muon`: hidden matrices by Muon.

        Raises `ConflictError`, with the weights untouched, if nothing was accumulated or the gradient is not finite.
        """

    def zero_grad(self) -> None:
        """Clear the accumulated gradient."""

    def take_reference(self, load: Callable[[], Decoder]) -> None:
        """Prepare for losses with KL terms: call `load` for the base policy, unless it is at hand or cannot be used."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything except the weights that the next step depends on, as flat named tensors.

        What was accumulated since the last step is not part of it.
        """

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state_dict()`, the weights having been restored before. Drops what was accumulated.

        Raises `UsageError` for a state of no trainer.
        """

    def reset(self) -> None:
        """Start again from the present weights: step 0 and no moments. Drops what was accumulated."""

    def save_policy(self, folder: Path, *, base: Path, name: str) -> bool:
        """Write to a new folder what a sampler of the present weights loads.

        `base`: folder of the base model, which adapters name. `name`: that of the checkpoint. Returns True for a model of its own,
        to which the caller adds the base's tokenizer and chat template.
        """
