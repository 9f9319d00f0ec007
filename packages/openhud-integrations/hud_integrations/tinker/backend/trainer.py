"""The trainer of weights on a Tinker service, behind the port of trainers.

A pass asks the service for logprobs, and computes the loss and its derivative of each logprob here, by the same formulas
as for weights of this process. The gradient is made with the optimizer step, as the service's `cross_entropy` whose
weights are these derivatives: what is accumulated is in this process until then, and every loss is available.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hud.engine.decoder import Decoder
from hud.engine.learn.accumulation import Accumulation, not_finite
from hud.engine.learn.packed_pass import check, lay_out, places_of
from hud.engine.learn.pass_metrics import Measured, pass_metrics
from hud.engine.trainer import Trainer
from hud.errors import UsageError
from hud.learning.datums import Datum, Floats, weighted_datums
from hud.learning.losses.config import LossConfig, parse_loss
from hud.learning.losses.formulas import compute_loss, sampler_gap
from hud.learning.wire_types import OptimizerName
from hud_integrations.tinker.backend.connection import WAIT_SECONDS
from hud_integrations.tinker.backend.weights import TinkerWeights

if TYPE_CHECKING:
    from tinker import types

_CPU = torch.device("cpu")


class TinkerTrainer(Trainer):
    """Accumulates derivatives of losses, and steps on the service."""

    def __init__(self, weights: TinkerWeights) -> None:
        self.weights = weights
        self._last_logprobs: list[Floats] = []
        self._passes: list[tuple[Datum, Floats]] = []
        """Sequences since the last step, each with (T,) -dC/dlp."""
        self._accumulation = Accumulation()

    @property
    def pending(self) -> bool:
        """True when something was accumulated since the last step."""
        return self._accumulation.pending

    @property
    def last_logprobs(self) -> list[Floats]:
        return self._last_logprobs

    def forward_backward(
        self,
        datums: Sequence[Datum],
        loss_fn: str = "importance_sampling",
        config: Mapping[str, float] | None = None,
        *,
        num_substeps: int = 1,
    ) -> dict[str, float]:
        """Accumulate a loss over `datums`; return its metrics. `num_substeps` has no effect: passes are the service's.

        Raises `UsageError` for a loss that needs a reference policy or the entropy.
        """
        loss = parse_loss(loss_fn, config)
        _refuse_terms(loss)
        self._accumulation.check(loss.normalization)
        used = [number for number, datum in enumerate(datums) if datum.actions]
        measured = Measured()
        self._last_logprobs = self.forward(datums)
        if used:
            self._accumulate(datums, used, loss, measured)
        return pass_metrics(datums, measured, self._last_logprobs, supervised=loss.supervised)

    def forward(self, datums: Sequence[Datum]) -> list[Floats]:
        """Return, for each datum, (T,) logprobs of its tokens under the weights now; 0 if the mask is 0.

        Raises `UsageError` for tokens that were sampled at another temperature than 1.
        """
        used = [number for number, datum in enumerate(datums) if datum.actions]
        check(datums, used)
        for number in used:
            if (datums[number].temperatures[datums[number].mask > 0] != 1).any():
                raise UsageError(
                    "A Tinker service computes logprobs at temperature 1, so runs that were sampled at another one cannot be "
                    "learned from there: sample with temperature 1."
                )
        rows = [np.zeros(datum.length, np.float32) for datum in datums]
        if used:
            data = [_wire(datums[number], datums[number].mask) for number in used]
            done = self.weights.train(
                lambda client: client.forward(data, "cross_entropy").result(WAIT_SECONDS)
            )
            for number, output in zip(used, done.loss_fn_outputs, strict=True):
                logprobs = np.asarray(output["logprobs"].to_numpy(), np.float32)
                rows[number][1:] = logprobs * (datums[number].mask[1:] > 0)
        return rows

    def backward(
        self, datums: Sequence[Datum], weights: Sequence[Sequence[float] | Floats]
    ) -> dict[str, float]:
        """Accumulate the gradient of -Σ w lp; see `Trainer.backward`."""
        weighted, ignored = weighted_datums(datums, weights)
        metrics = self.forward_backward(weighted, "cross_entropy")
        return metrics | {"ignored_weights:sum": float(ignored)}

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
        """Compute the accumulated gradient and apply it, on the service; return the metrics that it measures.

        Raises `ConflictError` if nothing was accumulated, and `UsageError` for an optimizer that the service does not have.
        """
        from tinker import types

        if optimizer != "adamw":
            raise UsageError(f"The training service has AdamW alone, not {optimizer!r}.")
        scale = np.float32(1.0 / self._accumulation.divisor())
        data = [_wire(datum, pull * scale) for datum, pull in self._passes]
        params = types.AdamParams(
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            grad_clip_norm=max_grad_norm or 0.0,
        )

        def step(client: Any) -> Any:
            # Both are sent before either is waited for: the service runs them back to back.
            passed, stepped = (
                client.forward_backward(data, "cross_entropy"),
                client.optim_step(params),
            )
            passed.result(WAIT_SECONDS)
            return stepped.result(WAIT_SECONDS)

        try:
            done = self.weights.train(step)
        finally:
            self.zero_grad()
        metrics = dict(done.metrics or {})
        return {
            name: float(value) for name, value in metrics.items() if not name.startswith("step:")
        }

    def zero_grad(self) -> None:
        """Drop what was accumulated."""
        self._passes = []
        self._accumulation.clear()

    def take_reference(self, load: Callable[[], Decoder]) -> None:
        """Load nothing: losses that need a reference are refused."""

    def save_policy(self, folder: Path, *, base: Path, name: str) -> bool:
        """Save the weights on the service, and write their addresses."""
        folder.mkdir()
        self.weights.save(name).write(folder)
        return False

    def state_dict(self) -> dict[str, Tensor]:
        """Return the random state of this process: that of the optimizer is in the service's save."""
        return {"rng": torch.get_rng_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state_dict()`. Drops what was accumulated. Raises `UsageError` for a state of no trainer."""
        if "rng" not in state:
            raise UsageError("This is no trainer state: it has no random state.")
        torch.set_rng_state(state["rng"].cpu().to(torch.uint8))
        self.zero_grad()

    def reset(self) -> None:
        """Drop what was accumulated: the base model has no optimizer state."""
        self.zero_grad()

    def _accumulate(
        self, datums: Sequence[Datum], used: list[int], loss: LossConfig, measured: Measured
    ) -> None:
        batch = lay_out(datums, places_of(datums, used, share=False), _CPU, torch.float64)
        packed = batch.datums
        flat = np.concatenate(
            [self._last_logprobs[number][datums[number].mask > 0] for number in packed]
        )
        logprobs = torch.from_numpy(flat.astype(np.float64)).requires_grad_()
        tokens = batch.tokens(logprobs)
        total, sums = compute_loss(tokens, loss)
        if not torch.isfinite(total):
            self.zero_grad()
            raise not_finite(float(total))
        (slope,) = torch.autograd.grad(total, logprobs)
        if not loss.supervised:
            sums |= sampler_gap(tokens)
        measured.add(batch, {name: float(value) for name, value in sums.items()}, logprobs)
        ends = np.cumsum([datums[number].actions for number in packed])
        for number, part in zip(packed, np.split(-slope.float().numpy(), ends[:-1]), strict=True):
            pull = np.zeros(datums[number].length, np.float32)
            pull[datums[number].mask > 0] = part
            self._passes.append((datums[number], pull))
        self._accumulation.add(measured, loss.normalization)


def _refuse_terms(loss: LossConfig) -> None:
    for needed, keys in (
        (loss.needs_reference, "kl_coef and kl_advantage_coef"),
        (loss.needs_entropy, "entropy_coef"),
    ):
        if needed:
            raise UsageError(
                f"A Tinker service returns only the logprobs of the trained weights, so a loss cannot have {keys} there; "
                "leave them out."
            )


def _wire(datum: Datum, weights: Floats) -> types.Datum:
    """Return a datum as Tinker's, whose position i predicts token i + 1, with (T,) weights."""
    from tinker import types

    targets = datum.tokens if datum.targets is None else datum.targets
    return types.Datum(
        model_input=types.ModelInput.from_ints(datum.tokens[:-1].tolist()),
        loss_fn_inputs={"target_tokens": targets[1:], "weights": weights[1:].astype(np.float32)},
    )
