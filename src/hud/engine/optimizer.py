"""AdamW with decoupled weight decay (arXiv 1711.05101), over named parameters.

    m ← β1 m + (1 - β1) g        v ← β2 v + (1 - β2) g²
    θ ← θ - lr (λ θ + m̂ / (√v̂ + ε))        m̂ = m / (1 - β1ⁿ),  v̂ = v / (1 - β2ⁿ)

Our own rather than torch's, because a step must be refused before it touches anything, its update is measured,
its state is a flat set of named tensors, and weights in bf16 are updated through fp32 masters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hud.errors import ConflictError, UsageError


@dataclass
class Slot:
    """One trained parameter: the tensor that the model computes with, and the one that is updated."""

    name: str
    parameter: nn.Parameter
    master: Tensor
    """The parameter itself in fp32 or fp64; a copy in fp32 where the model computes in less."""
    gradient: Tensor | None = None
    """The accumulated gradient, where the master is a copy."""
    first: Tensor | None = None
    second: Tensor | None = None

    @property
    def copied(self) -> bool:
        """True when the master is not the parameter itself."""
        return self.master is not self.parameter


class AdamW:
    """The moments and the step count of some parameters."""

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        self.step = 0
        self._slots = [Slot(name, parameter, _master(parameter)) for name, parameter in parameters]

    @property
    def names(self) -> list[str]:
        """Names of the trained parameters."""
        return [slot.name for slot in self._slots]

    def collect(self) -> None:
        """Move gradients of low-precision parameters into their fp32 sums; call after each backward pass."""
        for slot in self._slots:
            if slot.copied and slot.parameter.grad is not None:
                gradient = slot.parameter.grad.float()
                slot.gradient = gradient if slot.gradient is None else slot.gradient.add_(gradient)
                slot.parameter.grad = None

    def zero_grad(self) -> None:
        """Forget what was accumulated."""
        for slot in self._slots:
            slot.parameter.grad = None
            slot.gradient = None

    def gradients(self) -> dict[str, Tensor]:
        """Return the accumulated gradients by name."""
        return {
            slot.name: gradient for slot in self._slots if (gradient := _gradient(slot)) is not None
        }

    @torch.no_grad()
    def update(
        self,
        *,
        learning_rate: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        max_grad_norm: float | None,
        divide_by: float = 1.0,
    ) -> dict[str, float]:
        """Apply the accumulated gradient divided by `divide_by`, and forget it; return what was measured.

        A gradient that is not finite is refused and forgotten; weights and moments stay as they were.
        """
        slots = [(slot, grad) for slot in self._slots if (grad := _gradient(slot)) is not None]
        norm = _norm([grad for _, grad in slots]) / divide_by
        if not math.isfinite(norm):
            broken = [slot.name for slot, grad in slots if not bool(torch.isfinite(grad).all())]
            self.zero_grad()
            raise ConflictError(
                f"The gradient is not finite (in {len(broken)} of {len(slots)} parameters, first "
                f"{broken[0] if broken else 'in its norm'}); the step was refused, the weights are unchanged and the "
                "gradient was discarded. Look for extreme advantages, or lower the learning rate."
            )
        scale = 1.0 / divide_by
        if max_grad_norm is not None and norm > max_grad_norm:
            scale *= max_grad_norm / (norm + 1e-6)
        self.step += 1
        corrected1, corrected2 = 1 - beta1**self.step, 1 - beta2**self.step
        moved, size = [], []
        for slot, grad in slots:
            grad = grad if scale == 1.0 else grad * scale
            if slot.first is None or slot.second is None:
                slot.first = torch.zeros_like(slot.master, requires_grad=False)
                slot.second = torch.zeros_like(slot.master, requires_grad=False)
            slot.first.lerp_(grad, 1 - beta1)
            slot.second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            denominator = (slot.second / corrected2).sqrt_().add_(eps)
            change = slot.first.div(denominator).mul_(1 / corrected1)
            size.append(slot.master.norm())
            if weight_decay:
                change.add_(slot.master, alpha=weight_decay)
            slot.master.add_(change, alpha=-learning_rate)
            moved.append(change.norm())
            if slot.copied:
                slot.parameter.copy_(slot.master)
        self.zero_grad()
        weights = float(torch.stack(size).norm())
        update = learning_rate * float(torch.stack(moved).norm())
        return {
            "grad_norm:mean": norm,
            "update_norm:mean": update,
            "update_ratio:mean": update / weights if weights else 0.0,
            "grad_clipped:mean": float(max_grad_norm is not None and norm > max_grad_norm),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of moments and masters, by name, and the step count."""
        state = {"step": torch.tensor(self.step, dtype=torch.int64)}
        for slot in self._slots:
            if slot.first is not None and slot.second is not None:
                state[f"first/{slot.name}"] = slot.first.clone()
                state[f"second/{slot.name}"] = slot.second.clone()
            if slot.copied:
                state[f"master/{slot.name}"] = slot.master.clone()
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take a state over; check all of it before changing anything."""
        known = {slot.name: slot for slot in self._slots}
        for key, tensor in state.items():
            kind, _, name = key.partition("/")
            if kind not in ("first", "second", "master"):
                continue
            if name not in known or tensor.shape != known[name].master.shape:
                raise UsageError(
                    f"The optimizer state holds {name!r} of shape {tuple(tensor.shape)}, which is not trained here. It "
                    "belongs to another model or another LoRA configuration."
                )
        self.zero_grad()
        self.step = int(state["step"])
        for name, slot in known.items():
            slot.first = _taken(state, f"first/{name}", slot)
            slot.second = _taken(state, f"second/{name}", slot)
            if slot.copied:
                master = state.get(f"master/{name}")
                slot.master = _master(slot.parameter) if master is None else master.to(slot.master)
                slot.parameter.copy_(slot.master)

    def reset(self) -> None:
        """Begin anew from the model's present weights: step 0, no moments, nothing accumulated."""
        self.load_state_dict({"step": torch.tensor(0)})


def _master(parameter: nn.Parameter) -> Tensor:
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return parameter.detach().float().clone()


def _gradient(slot: Slot) -> Tensor | None:
    return slot.gradient if slot.copied else slot.parameter.grad


def _norm(tensors: list[Tensor]) -> float:
    if not tensors:
        return 0.0
    return float(torch.stack([tensor.norm() for tensor in tensors]).norm())


def _taken(state: dict[str, Tensor], key: str, slot: Slot) -> Tensor | None:
    tensor = state.get(key)
    return (
        None
        if tensor is None
        else tensor.to(device=slot.master.device, dtype=slot.master.dtype).clone()
    )
