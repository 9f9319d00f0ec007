"""Several processes train as one: the first takes the calls that a `Trainer` takes, the others do as they hear.

    torchrun --nproc-per-node 2 -m hud.cli.distributed train MODEL TASKS

The first rank keeps a whole copy of the weights, which its sampler draws with; what is trained is in parts, on all ranks,
and the whole copy follows after each step. What one rank would have written, several write: checkpoints fit any number.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hud.engine.config import DecoderConfig
from hud.engine.decoder import Decoder
from hud.engine.learn.options import TrainerOptions
from hud.engine.learn.trainer import PASS_TOKENS, Trainer
from hud.engine.learn.training_pass import Beside
from hud.engine.lora import LoraConfig, attach
from hud.errors import ConflictError, HudError, UsageError
from hud.learning.datums import Datum, Floats

if TYPE_CHECKING:
    from hud.engine.learn.process_group import Joined
    from hud.engine.pretrained import AnyDecoder

_OPEN, _REFERENCE, _TAKE, _GIVE = "open", "reference", "take", "give"


@dataclass(frozen=True)
class _Plan:
    """What a rank needs to know to make its part of a trainer."""

    config: DecoderConfig
    dtype: torch.dtype
    lora: LoraConfig | None
    pass_tokens: int
    options: TrainerOptions


@dataclass(frozen=True)
class _Call:
    """What every rank is to do now."""

    trainer: int
    method: str
    arguments: tuple[Any, ...] = ()
    options: Mapping[str, Any] | None = None
    gone: tuple[int, ...] = ()
    """Trainers that nobody has any more."""


class _Part:
    """One rank's part of a trainer, and of its reference policy."""

    def __init__(self, ranks: Joined, plan: _Plan) -> None:
        # Loads torch's distributed half, which one process alone does without.
        from hud.engine.learn import sharding

        self._sharding, self._ranks, self._plan = sharding, ranks, plan
        self.decoder = sharding.sharded_decoder(
            plan.config, plan.dtype, ranks, plan.lora, compiled=plan.options.compile_layers
        )
        self.trainer = Trainer(
            self.decoder,
            lora=plan.lora,
            pass_tokens=plan.pass_tokens,
            options=replace(plan.options, compile_layers=False),  # They are.
            ranks=ranks,
        )

    def do(self, call: _Call, whole: Any = None) -> Any:
        """Do this rank's part of a call; `whole` is what only the first rank has of it."""
        if call.method == _REFERENCE:
            reference = self._sharding.sharded_decoder(
                self._plan.config, self._plan.dtype, self._ranks
            )
            self._sharding.take_weights(self._ranks, reference, whole)
            self.trainer.reference = reference.requires_grad_(False)
            return None
        if call.method == _TAKE:
            return self._sharding.take_weights(self._ranks, self.decoder, whole)
        if call.method == _GIVE:
            names = self.trainer.trained
            return self._sharding.give_weights(self._ranks, self.decoder, names, whole)
        if call.method == "load_state_dict":
            return self.trainer.load_state_dict(whole or {})
        return getattr(self.trainer, call.method)(*call.arguments, **(call.options or {}))


class Lead:
    """The first rank's word to all. One call at a time, whoever makes it."""

    def __init__(self, ranks: Joined) -> None:
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
        self, number: int, method: str, *arguments: Any, whole: Any = None, **options: Any
    ) -> Any:
        """Have every rank do something, and return what it came to here."""
        with self._lock:
            if self._failed:
                raise ConflictError(
                    "The ranks of this training are out of step since an earlier call failed on one of them. Stop it and "
                    "start it again: it goes on from its last checkpoint."
                )
            gone, self.gone = tuple(self.gone), []
            call = _Call(number, method, arguments, options, gone)
            self._failed = True
            self.ranks.from_first(call)
            try:
                found = _do(self._parts, self.ranks, call, whole)
            except HudError:
                # Every rank found the same, and refused.
                self._failed = False
                raise
            self._failed = False
            return found

    def stop(self) -> None:
        """Let the other ranks go home."""
        with self._lock:
            if not self._failed:
                self._failed = True  # Nobody would hear a later call.
                self.ranks.from_first(None)

    def part(self, number: int) -> Trainer:
        """Return this rank's part of a trainer, for what can be asked without the others."""
        return self._parts[number].trainer


_lead: Lead | None = None


@contextmanager
def leading(ranks: Joined) -> Iterator[None]:
    """Inside, trainers that this process makes by `open_trainer` are those of all ranks."""
    global _lead
    _lead = Lead(ranks)
    try:
        yield
    finally:
        _lead.stop()
        _lead = None


def follow(ranks: Joined) -> None:
    """Do as the first rank says, until it ends."""
    parts: dict[int, _Part] = {}
    while True:
        call: _Call | None = ranks.from_first()
        if call is None:
            return
        try:
            _do(parts, ranks, call)
        except HudError:
            continue  # The first rank refuses for the same reason, and tells whoever asked.


def _do(parts: dict[int, _Part], ranks: Joined, call: _Call, whole: Any = None) -> Any:
    for number in call.gone:
        parts.pop(number, None)
    if call.method == _OPEN:
        parts[call.trainer] = _Part(ranks, *call.arguments)
        return None
    return parts[call.trainer].do(call, whole)


class DistributedTrainer:
    """A `Trainer` whose weights, moments and passes are spread over all ranks; asked on the first."""

    def __init__(
        self,
        lead: Lead,
        decoder: Decoder,
        *,
        lora: LoraConfig | None = None,
        pass_tokens: int = PASS_TOKENS,
        options: TrainerOptions | None = None,
    ) -> None:
        """`decoder` is the whole copy, which others may sample with; each step changes it."""
        self.decoder = decoder.requires_grad_(False)
        self.lora = lora
        self._lead = lead
        if lora is not None:
            attach(decoder, lora)
            decoder.requires_grad_(False)
        plan = _Plan(decoder.config, decoder.dtype, lora, pass_tokens, options or TrainerOptions())
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

    @property
    def reference(self) -> AnyDecoder | None:
        """The policy that KL is taken to; with LoRA None: the base is it."""
        return self._mine.reference

    @reference.setter
    def reference(self, reference: AnyDecoder) -> None:
        if not isinstance(reference, Decoder):
            raise _foreign()
        self._call(_REFERENCE, whole=reference)

    def forward_backward(
        self,
        datums: Sequence[Datum],
        loss_fn: str = "importance_sampling",
        config: Mapping[str, float] | None = None,
        *,
        num_substeps: int = 1,
    ) -> dict[str, float]:
        """See `Trainer.forward_backward`."""
        found: dict[str, float] = self._call(
            "forward_backward", datums, loss_fn, config, num_substeps=num_substeps
        )
        return found

    def forward(self, datums: Sequence[Datum]) -> list[Floats]:
        """See `Trainer.forward`."""
        found: list[Floats] = self._call("forward", datums)
        return found

    def backward(
        self, datums: Sequence[Datum], weights: Sequence[Sequence[float] | Floats]
    ) -> dict[str, float]:
        """See `Trainer.backward`."""
        found: dict[str, float] = self._call("backward", datums, weights)
        return found

    def optim_step(
        self,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
    ) -> dict[str, float]:
        """See `Trainer.optim_step`; the whole copy of the weights follows."""
        measured: dict[str, float] = self._call(
            "optim_step", learning_rate, beta1, beta2, eps, weight_decay, max_grad_norm
        )
        self._call(_GIVE, whole=self.decoder)
        return measured

    def zero_grad(self) -> None:
        """Forget what was accumulated."""
        self._call("zero_grad")

    def gradients(self) -> dict[str, Tensor]:
        """See `Trainer.gradients`."""
        found: dict[str, Tensor] = self._call("gradients")
        return found

    def state_dict(self) -> dict[str, Tensor]:
        """See `Trainer.state_dict`: it is that of one rank."""
        found: dict[str, Tensor] = self._call("state_dict")
        return found

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state and from the whole copy of the weights, which were restored before."""
        self._take()
        self._call("load_state_dict", whole=state)
        # Where weights are less precise than their masters, these say what they are.
        self._call(_GIVE, whole=self.decoder)

    def reset(self) -> None:
        """Begin anew from the whole copy's present weights: step 0 and no moments."""
        self._take()
        self._call("reset")

    @property
    def _mine(self) -> Trainer:
        return self._lead.part(self._number)

    def _take(self) -> None:
        self._call(_TAKE, whole=self.decoder)

    def _call(self, method: str, *arguments: Any, whole: Any = None, **options: Any) -> Any:
        return self._lead.call(self._number, method, *arguments, whole=whole, **options)


AnyTrainer = Trainer | DistributedTrainer


def open_trainer(
    decoder: AnyDecoder,
    *,
    lora: LoraConfig | None = None,
    options: TrainerOptions | None = None,
    beside: Callable[[], Sequence[Beside]] = tuple,
) -> AnyTrainer:
    """Return the trainer of a decoder: that of all ranks where this process leads some, else its own, with those `beside` it."""
    if _lead is None:
        return Trainer(decoder, lora=lora, options=options, beside=beside)
    if not isinstance(decoder, Decoder):
        raise _foreign()
    return DistributedTrainer(_lead, decoder, lora=lora, options=options)


def _foreign() -> UsageError:
    return UsageError(
        "Only models of the Llama, Qwen2 and Qwen3 families are trained by several ranks; train this one without torchrun."
    )
