"""AdamW with decoupled weight decay (arXiv 1711.05101) over named parameters, and Muon for hidden matrices where it is chosen.

    m ← β1 m + (1 - β1) g        v ← β2 v + (1 - β2) g²
    θ ← θ - lr (λ θ + m̂ / (√v̂ + ε))        m̂ = m / (1 - β1ⁿ),  v̂ = v / (1 - β2ⁿ)

Muon, with N five Newton-Schulz iterations that orthogonalize a matrix of a rows and b columns (kellerjordan.github.io/posts/muon):

    m ← μ m + (1 - μ) g        θ ← θ - lr (λ θ + 0.2 √max(a, b) N((1 - μ) g + μ m))        μ = 0.95

The factor makes its steps as long as AdamW's (arXiv 2502.16982), so that one learning rate serves all parameters.

The arithmetic is torch's: its fused kernel of AdamW, and `torch.optim.Muon`. What is around it is our own, because a step must be refused before it touches
anything, its update is measured, its state is a flat set of named whole tensors, however many ranks there are and
however moments are kept, and weights in bf16 are updated through fp32 masters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from hud.engine.cpu_threads import in_parallel
from hud.engine.learn.optimizer_state import Kept, Offloaded, OptimizerOptions, stored_moment
from hud.engine.learn.ranks import Ranks
from hud.errors import ConflictError, UsageError
from hud.learning.wire_types import OptimizerName

BUCKET = {"cpu": 1 << 22, "cuda": 1 << 26}
"""Numbers that are updated at once, so that what is copied for it stays small: 256 MiB in fp32. On a CPU 16 MiB for each core:
memory of that size is reused, larger one is fresh for every copy."""

MUON_MOMENTUM = 0.95
"""μ."""

Norms = tuple[float, float]
"""Norms of some weights before an update and of its change."""


@dataclass
class Slot:
    """One trained parameter, or this rank's shard of it."""

    name: str
    parameter: nn.Parameter
    """The model's parameter; with several ranks, its shape is that of the whole tensor."""
    value: Tensor
    """This rank's shard of it, in the same memory."""
    master: Kept
    """The updated tensor: the value itself in fp32 or fp64, else an fp32 copy."""
    copied: bool
    """True when the master is not the value itself."""
    gradient: Tensor | None = None
    """The accumulated gradient, where the master is a copy."""
    first: Kept | None = None
    second: Kept | None = None

    @property
    def master_dtype(self) -> torch.dtype:
        """fp32, or fp64 of parameters in fp64."""
        return torch.promote_types(self.value.dtype, torch.float32)


class AdamW:
    """AdamW's moments and step count of named parameters."""

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        options: OptimizerOptions | None = None,
        ranks: Ranks | None = None,
        matrices: Collection[str] = (),
    ) -> None:
        """Take parameters by name; `matrices` are those that Muon may update."""
        self.step = 0
        self._matrices = frozenset(matrices)
        self.options = options or OptimizerOptions()
        self._ranks = ranks or Ranks()
        self._slots = [self._slot(name, parameter) for name, parameter in parameters]
        self._on_cpu = all(slot.value.device.type == "cpu" for slot in self._slots)

    @property
    def names(self) -> list[str]:
        """Names of the trained parameters."""
        return [slot.name for slot in self._slots]

    def collect(self) -> None:
        """Move gradients of low-precision parameters into their fp32 sums; call after each backward pass."""
        for slot in self._slots:
            if slot.copied and slot.parameter.grad is not None:
                gradient = self._ranks.local(slot.parameter.grad)
                if slot.gradient is None:
                    slot.gradient = gradient.float()
                else:
                    slot.gradient.add_(gradient)
                slot.parameter.grad = None

    def zero_grad(self) -> None:
        """Forget what was accumulated."""
        for slot in self._slots:
            slot.parameter.grad = None
            slot.gradient = None

    def gradients(self) -> dict[str, Tensor]:
        """Return the accumulated gradients by name, whole on every rank."""
        return {
            slot.name: self._ranks.gather_tensor(gradient, slot.parameter)
            for slot in self._slots
            if (gradient := self._gradient(slot)) is not None
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
        optimizer: OptimizerName = "adamw",
    ) -> dict[str, float]:
        """Apply the accumulated gradient divided by `divide_by`, and forget it; return what was measured.

        A gradient that is not finite is refused and forgotten; weights and moments stay as they were. Raises `UsageError` for
        Muon on several ranks, whose shards are no matrices, and for settings that make weights infinite: the caller restores the weights.
        """
        if optimizer == "muon" and self._ranks.count > 1:
            raise UsageError(
                "Muon needs whole matrices, and several processes hold shards of them; train with optimizer='adamw', or on one GPU."
            )
        slots = [(slot, grad) for slot in self._slots if (grad := self._gradient(slot)) is not None]
        norm = self._norm(_norm([grad for _, grad in slots])) / divide_by
        if not math.isfinite(norm):
            self._refuse(slots)
        scale = 1.0 / divide_by
        if max_grad_norm is not None and norm > max_grad_norm:
            scale *= max_grad_norm / (norm + 1e-6)
        settings = {
            "lr": learning_rate,
            "beta1": beta1,
            "beta2": beta2,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        by_muon = self._matrices if optimizer == "muon" else frozenset()
        others = [(slot, grad) for slot, grad in slots if slot.name not in by_muon]
        buckets = _buckets(others, BUCKET["cpu" if self._on_cpu else "cuda"])
        updates = [partial(self._update, bucket, scale, settings) for bucket in buckets]
        updates += [
            partial(self._update_matrix, slot, grad, scale, learning_rate, weight_decay)
            for slot, grad in slots
            if slot.name in by_muon
        ]
        # Each on one core: helpers of OpenMP wait for each other after every tensor.
        norms = [*in_parallel(updates)] if self._on_cpu else [update() for update in updates]
        self.step += 1
        self.zero_grad()
        weights = self._norm(math.hypot(*(size for size, _ in norms)))
        change = self._norm(math.hypot(*(moved for _, moved in norms)))
        if not math.isfinite(change):
            raise UsageError(
                f"A step with the learning rate {learning_rate:g} makes weights that are not finite; it was refused, and "
                "the weights are those of the last checkpoint. Lower the learning rate or the weight decay."
            )
        return {
            "grad_norm:mean": norm,
            "update_norm:mean": change,
            "update_ratio:mean": change / weights if weights else 0.0,
            "grad_clipped:mean": float(max_grad_norm is not None and norm > max_grad_norm),
        }

    @torch.no_grad()
    def _update(
        self, bucket: Sequence[tuple[Slot, Tensor]], scale: float, settings: Mapping[str, Any]
    ) -> Norms:
        """Update some parameters by their gradients times `scale`; return the norms of what they were and of the change."""
        masters = [slot.master.read() for slot, _ in bucket]
        moments = [self._moments(slot) for slot, _ in bucket]
        before = [master.clone() for master in masters]
        adamw(
            masters,
            [grad.to(slot.master_dtype).mul_(scale) for slot, grad in bucket],
            [first for first, _ in moments],
            [second for _, second in moments],
            [],
            # The kernel counts the step that it takes itself.
            [torch.tensor(float(self.step), device=master.device) for master in masters],
            fused=True,
            amsgrad=False,
            maximize=False,
            **settings,
        )
        size = _norm(before)
        moved = _norm([old.sub_(master) for old, master in zip(before, masters, strict=True)])
        for (slot, _), master, (first, second) in zip(bucket, masters, moments, strict=True):
            self._keep(slot, master, first, second)
        return size, moved

    @torch.no_grad()
    def _update_matrix(
        self, slot: Slot, grad: Tensor, scale: float, learning_rate: float, weight_decay: float
    ) -> Norms:
        """Update a matrix by Muon; return the norms of what it was and of the change."""
        weight = nn.Parameter(slot.master.read().clone())
        muon = torch.optim.Muon(
            [weight],
            lr=learning_rate,
            weight_decay=weight_decay,
            momentum=MUON_MOMENTUM,
            adjust_lr_fn="match_rms_adamw",
        )
        weight.grad = grad.to(slot.master_dtype) * scale
        if slot.first is not None:
            muon.state[weight]["momentum_buffer"] = slot.first.read()
        muon.step()  # type: ignore[no-untyped-call]
        before, momentum = slot.master.read(), muon.state[weight]["momentum_buffer"]
        norms = _norm([before]), _norm([before - weight.detach()])
        self._keep(slot, weight.detach(), momentum, None)
        return norms

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of moments and masters, by name and whole, and the step count.

        Of several ranks, only the first gets the tensors, in the host's memory. Moments in eight bits are in it as
        the fp32 numbers that they stand for, so a state fits any number of ranks and any way of keeping it.
        """
        state = {"step": torch.tensor(self.step, dtype=torch.int64)}
        for slot in self._slots:
            tensors = {"first": slot.first, "second": slot.second}
            if slot.copied:
                tensors["master"] = slot.master
            for kind, stored in tensors.items():
                if stored is None:
                    continue
                full = self._ranks.gather_tensor(stored.read(), slot.parameter)
                if self._ranks.count == 1:
                    state[f"{kind}/{slot.name}"] = full.clone()
                elif self._ranks.index == 0:
                    state[f"{kind}/{slot.name}"] = full.cpu()
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take a state over; check all of it before changing anything. Of several ranks, the first has it.

        Raises `UsageError` for a tensor that is not trained here.
        """
        shapes, step = self._ranks.gather(
            ({key: tuple(tensor.shape) for key, tensor in state.items()}, int(state.get("step", 0)))
        )[0]
        slots = {slot.name: slot for slot in self._slots}
        for key, shape in shapes.items():
            kind, _, name = key.partition("/")
            if kind not in ("first", "second", "master"):
                continue
            if name not in slots or shape != tuple(slots[name].parameter.shape):
                raise UsageError(
                    f"The optimizer state holds {name!r} of shape {shape}, which is not trained here. It "
                    "belongs to another model or another LoRA configuration."
                )
        self.zero_grad()
        self.step = step
        for name, slot in slots.items():

            def taken(kind: str, name: str = name, slot: Slot = slot) -> Tensor | None:
                key = f"{kind}/{name}"
                if key not in shapes:
                    return None
                # A copy: the caller may continue to use the state.
                return self._ranks.shard(state.get(key), slot.parameter, slot.master_dtype).clone()

            first, second = taken("first"), taken("second")
            slot.first = None if first is None else stored_moment(first, self.options, signed=True)
            slot.second = (
                None if second is None else stored_moment(second, self.options, signed=False)
            )
            if slot.copied:
                master = taken("master")
                slot.master.write(slot.value if master is None else master)
                slot.value.copy_(slot.master.read())

    def reset(self) -> None:
        """Reset to the model's present weights: step 0, no moments, no gradient."""
        self.load_state_dict({"step": torch.tensor(0)})

    def _slot(self, name: str, parameter: nn.Parameter) -> Slot:
        value = self._ranks.local(parameter)
        copied = value.dtype not in (torch.float32, torch.float64)
        if not copied:
            return Slot(name, parameter, value, Kept(value), copied)
        master = value.float()
        held = Offloaded(master) if self.options.offload else Kept(master)
        return Slot(name, parameter, value, held, copied)

    def _gradient(self, slot: Slot) -> Tensor | None:
        """Return this rank's shard of the accumulated gradient."""
        if slot.copied:
            return slot.gradient
        return None if slot.parameter.grad is None else self._ranks.local(slot.parameter.grad)

    def _moments(self, slot: Slot) -> tuple[Tensor, Tensor]:
        def read(moment: Kept | None) -> Tensor:
            if moment is None:
                return torch.zeros_like(slot.value, dtype=slot.master_dtype)
            return moment.read()

        return read(slot.first), read(slot.second)

    def _keep(self, slot: Slot, master: Tensor, first: Tensor, second: Tensor | None) -> None:
        slot.first = self._kept(slot.first, first, signed=True)
        slot.second = None if second is None else self._kept(slot.second, second, signed=False)
        slot.master.write(master)
        if slot.copied:
            slot.value.copy_(master)

    def _kept(self, stored: Kept | None, moment: Tensor, *, signed: bool) -> Kept:
        if stored is None:
            return stored_moment(moment, self.options, signed=signed)
        stored.write(moment)
        return stored

    def _norm(self, shard_norm: float) -> float:
        """Return the norm over all ranks' shards."""
        return math.hypot(*self._ranks.gather(shard_norm))

    def _refuse(self, slots: list[tuple[Slot, Tensor]]) -> None:
        """Drop a gradient that is not finite, and raise `ConflictError` naming the parameters."""
        non_finite = {slot.name for slot, grad in slots if not bool(torch.isfinite(grad).all())}
        everywhere = set().union(*self._ranks.gather(non_finite))
        broken = [slot.name for slot, _ in slots if slot.name in everywhere]
        self.zero_grad()
        raise ConflictError(
            f"The gradient is not finite (in {len(broken)} of {len(slots)} parameters, first "
            f"{broken[0] if broken else 'in its norm'}); the step was refused, the weights are unchanged and the "
            "gradient was discarded. Look for extreme advantages, or lower the learning rate."
        )


def hidden_matrices(model: nn.Module, vocabulary: int) -> set[str]:
    """Return the names of the matrices that Muon may update: all with two dimensions but tables of embeddings and the head."""
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and id(parameter) not in tables and vocabulary not in parameter.shape
    }


def _buckets(slots: list[tuple[Slot, Tensor]], most: int) -> Iterator[list[tuple[Slot, Tensor]]]:
    bucket: list[tuple[Slot, Tensor]] = []
    count = 0
    for slot, grad in slots:
        if bucket and count + grad.numel() > most:
            yield bucket
            bucket, count = [], 0
        bucket.append((slot, grad))
        count += grad.numel()
    if bucket:
        yield bucket


def _norm(tensors: list[Tensor]) -> float:
    if not tensors:
        return 0.0
    return float(torch.stack([tensor.norm() for tensor in tensors]).norm())
