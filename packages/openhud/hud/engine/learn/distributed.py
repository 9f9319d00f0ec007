"""Distributed training: the first rank takes the calls of a `Trainer`, and every rank executes them.

    torchrun --nproc-per-node 2 -m hud.cli.distributed train MODEL TASKS

The first rank has a whole copy of the weights for its sampler; the trained weights are sharded over all ranks, and update
the whole copy after each step. Checkpoints are independent of the number of ranks.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from hud.engine.config import DecoderConfig
from hud.engine.decoder import Decoder
from hud.engine.learn.local_trainer import LocalTrainer, save_weights
from hud.engine.learn.options import TrainerOptions
from hud.engine.learn.pass_workers import PassWorker
from hud.engine.lora import LoraConfig, attach
from hud.engine.trainer import Trainer
from hud.errors import ConflictError, HudError, UsageError
from hud.learning.datums import Floats

if TYPE_CHECKING:
    from hud.engine.learn.process_group import ProcessGroup

P = ParamSpec("P")
R = TypeVar("R")

_OPEN, _REFERENCE, _TAKE, _GIVE = "open", "reference", "take", "give"


@dataclass(frozen=True)
class _Plan:
    """Arguments of each rank's trainer."""

    config: DecoderConfig
    dtype: torch.dtype
    lora: LoraConfig | None
    options: TrainerOptions


@dataclass(frozen=True)
class _Call:
    """A call that every rank executes."""

    trainer: int
    method: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] | None = None
    gone: tuple[int, ...] = ()
    """Trainers to drop first: they were garbage-collected on the first rank."""


class _Part:
    """One rank's part of a trainer, and of its reference policy."""

    def __init__(self, ranks: ProcessGroup, plan: _Plan) -> None:
        # Imports torch.distributed, which a single process does not need.
        from hud.engine.learn import sharding

        self._sharding, self._ranks, self._plan = sharding, ranks, plan
        self.decoder = sharding.sharded_decoder(
            plan.config, plan.dtype, ranks, plan.lora, compiled=plan.options.compile_layers
        )
        self.trainer = LocalTrainer(
            self.decoder,
            lora=plan.lora,
            options=replace(plan.options, compile_layers=False),  # They are.
            ranks=ranks,
        )

    def do(self, call: _Call, lead_only: Any = None) -> Any:
        """Execute this rank's part of a call; `lead_only` is an argument that only the first rank has."""
        if call.method == _REFERENCE:
            reference = self._sharding.sharded_decoder(
                self._plan.config, self._plan.dtype, self._ranks
            )
            self._sharding.take_weights(self._ranks, reference, lead_only)
            self.trainer.reference = reference.requires_grad_(False)
            return None
        if call.method == _TAKE:
            return self._sharding.take_weights(self._ranks, self.decoder, lead_only)
        if call.method == _GIVE:
            names = self.trainer.trained
            return self._sharding.give_weights(self._ranks, self.decoder, names, lead_only)
        if call.method == "load_state_dict":
            return self.trainer.load_state_dict(lead_only or {})
        return getattr(self.trainer, call.method)(*call.arguments, **(call.options or {}))


class Lead:
    """Calls from the first rank to all, one at a time."""

    def __init__(self, ranks: ProcessGroup) -> None:
        self.ranks = ranks
        self.gone: list[int] = []
        self._parts: dict[int, _Part] = {}
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._failed = False

    def open(self, plan: _Plan) -> int:
        """Make a trainer on every rank; return its number. Its weights come with `_TAKE`."""
        number = next(self._numbers)
        self.call(number, _OPEN, plan)
        return number

    def call(
        self, number: int, method: str, *arguments: Any, lead_only: Any = None, **options: Any
    ) -> Any:
        """Execute a call on every rank; return this rank's result.

        Raises `ConflictError` after a call that failed with anything but a `HudError`: the ranks may be out of step.
        """
        with self._lock:
            if self._failed:
                raise ConflictError(
                    "The ranks of this training are out of step since an earlier call failed on one of them. Stop it and "
                    "start it again: it goes on from its last checkpoint."
                )
            gone, self.gone = tuple(self.gone), []
            call = _Call(number, method, arguments, options, gone)
            self._failed = True
            self.ranks.broadcast(call)
            try:
                result = _do(self._parts, self.ranks, call, lead_only)
            except HudError:
                # Every rank raised the same.
                self._failed = False
                raise
            self._failed = False
            return result

    def stop(self) -> None:
        """End `follow` on the other ranks."""
        with self._lock:
            if not self._failed:
                self._failed = True  # The other ranks have ended; no later call is possible.
                self.ranks.broadcast(None)

    def part(self, number: int) -> LocalTrainer:
        """Return this rank's part of a trainer."""
        return self._parts[number].trainer


_lead: Lead | None = None


@contextmanager
def leading(ranks: ProcessGroup) -> Iterator[None]:
    """Within the context, `open_trainer` creates trainers over all ranks."""
    global _lead
    _lead = Lead(ranks)
    try:
        yield
    finally:
        _lead.stop()
        _lead = None


def follow(ranks: ProcessGroup) -> None:
    """Execute the first rank's calls until it stops."""
    parts: dict[int, _Part] = {}
    while True:
        call: _Call | None = ranks.broadcast()
        if call is None:
            return
        try:
            _do(parts, ranks, call)
        except HudError:
            continue  # The first rank raises the same to its caller.


def _do(parts: dict[int, _Part], ranks: ProcessGroup, call: _Call, lead_only: Any = None) -> Any:
    for number in call.gone:
        parts.pop(number, None)
    if call.method == _OPEN:
        parts[call.trainer] = _Part(ranks, *call.arguments)
        return None
    return parts[call.trainer].do(call, lead_only)


def _on_every_rank(
    method: Callable[Concatenate[LocalTrainer, P], R], *, gives: bool = False
) -> Callable[Concatenate[DistributedTrainer, P], R]:
    """Return a method that calls the trainer's on every rank; `gives`: and then updates the whole copy of the weights."""

    @wraps(method)
    def call(self: DistributedTrainer, /, *arguments: P.args, **options: P.kwargs) -> R:
        result: R = self._call(method.__name__, *arguments, **options)
        if gives:
            self._call(_GIVE, lead_only=self.decoder)
        return result

    return call


class DistributedTrainer(Trainer):
    """A trainer whose weights, moments and passes are distributed over all ranks; called on the first."""

    def __init__(
        self,
        lead: Lead,
        decoder: Decoder,
        *,
        lora: LoraConfig | None = None,
        options: TrainerOptions | None = None,
    ) -> None:
        """`decoder` is the whole copy of the weights, for sampling; each step updates it."""
        self.decoder = decoder.requires_grad_(False)
        self.lora = lora
        self._lead = lead
        if lora is not None:
            attach(decoder, lora)
            decoder.requires_grad_(False)
        plan = _Plan(decoder.config, decoder.dtype, lora, options or TrainerOptions())
        self._number = lead.open(plan)
        weakref.finalize(self, lead.gone.append, self._number)
        self.reset()

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self._mine.step

    @property
    def trained(self) -> list[str]:
        """Names of the parameters that are trained."""
        return self._mine.trained

    @property
    def pending(self) -> bool:
        """True when something was accumulated since the last step."""
        return self._mine.pending

    @property
    def last_logprobs(self) -> list[Floats]:
        """See `Trainer.last_logprobs`; of all ranks' datums."""
        return self._mine.last_logprobs

    def take_reference(self, load: Callable[[], Decoder]) -> None:
        """Load the base policy and shard it, unless it is the base of the adapter."""
        if self.lora is None and self._mine.reference is None:
            self._call(_REFERENCE, lead_only=load())

    def save_policy(self, folder: Path, *, base: Path, name: str) -> bool:
        return save_weights(self.decoder, self.lora, folder, base)

    forward_backward = _on_every_rank(LocalTrainer.forward_backward)
    forward = _on_every_rank(LocalTrainer.forward)
    backward = _on_every_rank(LocalTrainer.backward)
    optim_step = _on_every_rank(LocalTrainer.optim_step, gives=True)
    zero_grad = _on_every_rank(LocalTrainer.zero_grad)
    gradients = _on_every_rank(LocalTrainer.gradients)
    state_dict = _on_every_rank(LocalTrainer.state_dict)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state and from the whole copy of the weights, which were restored before."""
        self._take()
        self._call("load_state_dict", lead_only=state)
        # Where weights are less precise than their masters, these say what they are.
        self._call(_GIVE, lead_only=self.decoder)

    def reset(self) -> None:
        """Reset to the whole copy's present weights: step 0 and no moments."""
        self._take()
        self._call("reset")

    @property
    def _mine(self) -> LocalTrainer:
        return self._lead.part(self._number)

    def _take(self) -> None:
        self._call(_TAKE, lead_only=self.decoder)

    def _call(self, method: str, *arguments: Any, lead_only: Any = None, **options: Any) -> Any:
        return self._lead.call(self._number, method, *arguments, lead_only=lead_only, **options)


def open_trainer(
    decoder: Decoder,
    *,
    lora: LoraConfig | None = None,
    options: TrainerOptions | None = None,
    beside: Callable[[], Sequence[PassWorker]] = tuple,
) -> Trainer:
    """Return the trainer of a decoder: distributed where this process leads other ranks, else its own."""
    if _lead is None:
        return LocalTrainer(decoder, lora=lora, options=options, beside=beside)
    if not decoder.config.ours:
        raise _foreign()
    return DistributedTrainer(_lead, decoder, lora=lora, options=options)


def _foreign() -> UsageError:
    return UsageError(
        "Only models of the Llama, Qwen2 and Qwen3 families are trained by several ranks; train this one without torchrun."
    )
