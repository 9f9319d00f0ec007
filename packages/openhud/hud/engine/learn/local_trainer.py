"""The trainer of one process: gradients of a loss over datums, and optimizer steps, on a decoder that may be sampling too.

Knows datums, losses and weights; nothing of text, rewards or checkpoint folders. The caller pauses sampling while `optim_step`
or `load_state_dict` changes the weights.

    trainer = LocalTrainer(decoder, lora=LoraConfig(rank=8))
    metrics = trainer.forward_backward(batch.datums, "ppo", {"epsilon": 0.2})
    metrics |= trainer.optim_step(1e-4)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from hud.engine.cpu_threads import (
    SMALL_PARAMETERS,
    for_training,
    in_parallel,
    on_all_cores,
    passes_at_once,
)
from hud.engine.decoder import Decoder
from hud.engine.device_memory import within_memory
from hud.engine.learn.accumulation import Accumulation, not_finite
from hud.engine.learn.compiled_layers import compile_layers
from hud.engine.learn.flops import pass_flops
from hud.engine.learn.memory_advice import training_advice
from hud.engine.learn.optimizer import AdamW, hidden_matrices
from hud.engine.learn.options import TrainerOptions
from hud.engine.learn.packed_pass import PackedPass, check, check_pictures, lay_out, places_of
from hud.engine.learn.pass_computer import PassResult
from hud.engine.learn.pass_metrics import Measured, pass_metrics
from hud.engine.learn.pass_workers import Compute, PassWorker, on_first_free
from hud.engine.learn.ranks import Ranks
from hud.engine.learn.step_meter import Meter
from hud.engine.learn.training_pass import pass_computer
from hud.engine.lora import LoraConfig, attach, disabled, lora_parameters, save_adapter
from hud.engine.models.routing import Experts
from hud.engine.pretrained import save_decoder
from hud.engine.trainer import Trainer
from hud.errors import DeviceMemoryError, UsageError
from hud.learning.datums import Datum, Floats, weighted_datums
from hud.learning.losses.config import LossConfig, parse_loss
from hud.learning.packing import deal, pack, tokens_of
from hud.learning.wire_types import OptimizerName

T = TypeVar("T")

PASS_TOKENS = 4096
"""Most tokens computed at once, shared ones once; a longer sequence goes alone."""

PASS_TOKENS_ON_CPU = 1024
"""The same of one pass of a model above `SMALL_PARAMETERS` on a CPU, which gains no speed from more: with 135 million parameters
a thousand tokens hold 1 GB."""

APART_FROM = 512
"""Fewest tokens of a pass that is computed in parallel with others."""


class LocalTrainer(Trainer):
    """Accumulates gradients and steps. Full weights without `lora`, else adapters only."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        lora: LoraConfig | None = None,
        reference: Decoder | None = None,
        pass_tokens: int | None = None,
        options: TrainerOptions | None = None,
        ranks: Ranks | None = None,
        beside: Callable[[], Sequence[PassWorker]] = tuple,
    ) -> None:
        """`reference`: the reference policy of KL terms; with LoRA the base by default.

        `pass_tokens`: most tokens computed at once; None: the default of the device and the model's size.

        `beside` returns the current worker processes that compute passes of a small model, if any; `Policy.exclusive`
        updates their weights.

        With several `ranks`, the decoders are sharded, and every rank calls every method with the same arguments;
        `load_state_dict` needs the state on the first only. All return the same, but for `state_dict`.
        """
        self.decoder = decoder
        self.lora = lora
        self.reference = reference
        if lora is not None:
            attach(decoder, lora)
            trained = lora_parameters(decoder)
        else:
            decoder.requires_grad_(True)
            trained = dict(decoder.named_parameters())
        options = options or TrainerOptions()
        if options.compile_layers:
            compile_layers(decoder)
        if options.recompute_layers:
            decoder.checkpointed = True
        self._computer = pass_computer(decoder)
        self._ranks = ranks or Ranks()
        self._beside = beside
        self._advice = training_advice(options, lora=lora is not None)
        with within_memory("the optimizer's states", self._advice):
            matrices = hidden_matrices(decoder, decoder.config.vocab_size)
            self._optimizer = AdamW(trained.items(), options.optimizer, self._ranks, matrices)
        self._trained = list(trained.values())
        first = next(iter(trained.values()))
        self._device = first.device
        self._dtype = torch.float64 if first.dtype == torch.float64 else torch.float32
        self._meter = Meter(first.device, decoder.dtype)
        self._at_once = 1
        """Passes computed at the same time. 1 with shards, which a pass gathers and frees, be it in one process, with
        `transformers` models, and with large ones in bf16, which gain from matrix instructions alone."""
        parameters = sum(parameter.numel() for parameter in decoder.parameters())
        plain = decoder.config.ours and (reference is None or reference.config.ours)
        plain = plain and not options.compile_layers
        plain = plain and (parameters <= SMALL_PARAMETERS or decoder.dtype == torch.float32)
        if plain and first.device.type == "cpu" and ranks is None:
            gradient_bytes = sum(parameter.nbytes for parameter in self._trained)
            self._at_once = passes_at_once(parameters, gradient_bytes)
        self.pass_tokens = pass_tokens or default_pass_tokens(decoder, self._at_once)
        self._most_tokens = pass_tokens or PASS_TOKENS
        self._last_logprobs: list[Floats] = []
        self._accumulation = Accumulation()

    @property
    def step(self) -> int:
        """Optimizer steps taken."""
        return self._optimizer.step

    @property
    def trained(self) -> list[str]:
        """Names of the parameters that are trained."""
        return self._optimizer.names

    @property
    def pending(self) -> bool:
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
        loss = parse_loss(loss_fn, config)
        self._accumulation.check(loss.normalization)
        rank_measured = Measured()
        with self._meter.working(), self._gradient_within_memory("a training pass"):
            passes = self._passes(datums, num_substeps)
            for batch, result in self._each(passes, loss):
                self._collect(batch, result, rank_measured)
            measured = Measured.together(self._ranks.gather(rank_measured))
        sums = measured.sums
        if not math.isfinite(sums.get("loss", 0.0)):
            self.zero_grad()
            raise not_finite(sums["loss"])
        self._last_logprobs = measured.logprobs_of(datums)
        self._accumulation.add(measured, loss.normalization)
        return pass_metrics(datums, measured, self._last_logprobs, supervised=loss.supervised)

    def forward(self, datums: Sequence[Datum]) -> list[Floats]:
        measured = Measured()
        with within_memory("a pass of logprobs", self._advice):
            for batch, result in self._each(self._passes(datums, 1), None):
                measured.add(batch, {}, result.logprobs)
        self._ranks.release(self.decoder)
        return Measured.together(self._ranks.gather(measured)).logprobs_of(datums)

    def backward(
        self, datums: Sequence[Datum], weights: Sequence[Sequence[float] | Floats]
    ) -> dict[str, float]:
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
        update = partial(
            self._optimizer.update,
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm,
            divide_by=self._accumulation.divisor(),
            optimizer=optimizer,
        )
        try:
            with self._meter.working(), self._gradient_within_memory("an optimizer step"):
                measured = self._compute(update)
            return measured | self._meter.read(self._ranks)
        finally:
            self._forget()

    def zero_grad(self) -> None:
        """Clear the accumulated gradient."""
        self._optimizer.zero_grad()
        self._forget()

    def take_reference(self, load: Callable[[], Decoder]) -> None:
        """Load the base policy, unless it is the base of the adapter."""
        if self.lora is None and self.reference is None:
            self.reference = load().requires_grad_(False)

    def save_policy(self, folder: Path, *, base: Path, name: str) -> bool:
        return save_weights(self.decoder, self.lora, folder, base)

    def gradients(self) -> dict[str, Tensor]:
        """Return the accumulated gradients by parameter name, before any division by a batch's size."""
        return self._optimizer.gradients()

    def state_dict(self) -> dict[str, Tensor]:
        """Return everything except the weights that the next step depends on, as flat named tensors.

        With the weights themselves and this, training continues bit for bit on the CPU. What was accumulated
        since the last step is not part of it. However many ranks wrote it, it is that of one, and the first has it.
        """
        state = self._optimizer.state_dict()
        state["rng"] = torch.get_rng_state()
        if self._device.type == "cuda":
            state["rng_cuda"] = torch.cuda.get_rng_state(self._device)
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state_dict()`, the weights having been restored before. Drops what was accumulated.

        Raises `UsageError` for a state without a step count.
        """
        if not self._ranks.gather("step" in state)[0]:
            raise UsageError("This is no trainer state: it has no step count.")
        with within_memory("the optimizer's states", self._advice):
            self._optimizer.load_state_dict(dict(state))
        if "rng" in state:
            torch.set_rng_state(state["rng"].cpu().to(torch.uint8))
        if "rng_cuda" in state and self._device.type == "cuda":
            torch.cuda.set_rng_state(state["rng_cuda"].cpu().to(torch.uint8), self._device)
        self._forget()

    def reset(self) -> None:
        """Start again from the decoder's present weights: step 0 and no moments."""
        self._optimizer.reset()
        self._forget()

    @contextmanager
    def _gradient_within_memory(self, work: str) -> Iterator[None]:
        """Raise `DeviceMemoryError` where the device has no memory for `work`; the partial gradient is discarded."""
        try:
            with within_memory(f"{work}; the accumulated gradient was discarded", self._advice):
                yield
        except DeviceMemoryError:
            self.zero_grad()
            raise

    def _forget(self) -> None:
        self._accumulation.clear()
        self._meter.reset()

    def _passes(self, datums: Sequence[Datum], at_least: int) -> list[PackedPass]:
        """Pack this rank's passes: as many as every other's, for the collectives of each layer."""
        used = [number for number, datum in enumerate(datums) if datum.actions]
        check(datums, used)
        check_pictures(datums, used, self.decoder.picture_tokens)
        alone = any(
            datums[number].pictures for number in used
        )  # Equal tokens may be other pictures.
        order = places_of(datums, used, share=self.decoder.shares_prefixes and not alone)
        at_once = min(self._at_once, max(1, tokens_of(order) // APART_FROM))
        budget = max(1, self.pass_tokens // at_once)
        # With twice the room of a sequence that fills a pass alone, others share its beginning instead of computing it again.
        longest = max((place.length for place in order), default=0)
        if longest > budget:
            budget = max(budget, min(self._most_tokens, 2 * longest) // at_once)
        packs = deal(
            lambda count: pack(order, budget, at_least=count),
            self._ranks.index,
            self._ranks.count,
            at_least=at_least,
            at_once=at_once,
        )
        experts = self._sampled_experts(datums, used)
        return [lay_out(datums, places, self._device, self._dtype, experts) for places in packs]

    def _sampled_experts(self, datums: Sequence[Datum], which: Sequence[int]) -> dict[int, Experts]:
        """Return the router choices by which datums were sampled, as far as they are kept."""
        routes = self.decoder.sampled_routes
        if routes is None:
            return {}
        sampled = {number: routes.of(datums[number].tokens) for number in which}
        return {number: experts for number, experts in sampled.items() if experts is not None}

    def _each(
        self, passes: Sequence[PackedPass], loss: LossConfig | None
    ) -> Iterator[tuple[PackedPass, PassResult]]:
        """Yield every pass with its result, several computed at the same time where that is faster.

        Without a loss that is the logprobs alone.
        """
        # A pass of the reference disables the adapters, which others compute with.
        referring = (
            loss is not None
            and loss.needs_reference
            and any(batch.reference is None for batch in passes)
        )
        alone = referring and self.reference is None
        if self._at_once == 1 or alone:
            for batch in passes:
                yield batch, self._compute(partial(self._one_pass, batch, loss))
            return
        # In the process of the rollouts' loop, threads would wait for the interpreter's lock after every operation.
        sides = [] if referring else self._beside()
        work: Compute = self._one_pass
        if sides and 2 * len(sides) >= min(self._at_once, len(passes)):
            checkpointed = self.decoder.checkpointed
            work = on_first_free(sides, self._one_pass, checkpointed=checkpointed)
        works = [partial(work, batch, loss) for batch in passes]
        yield from zip(passes, in_parallel(works), strict=True)

    def _one_pass(self, batch: PackedPass, loss: LossConfig | None) -> PassResult:
        """Compute one pass and, of a loss, its gradient."""
        if loss is None:
            return self._computer.logprobs(batch)
        reference = batch.reference
        if reference is None and loss.needs_reference:
            result = self._reference_pass(batch, loss.reference_top)
            reference = result.logprobs
            batch = replace(
                batch, reference_tokens=result.top_tokens, reference_top=result.top_logprobs
            )
        trained = self._trained if self._at_once > 1 else None
        return self._computer.gradient(batch, loss, reference, trained=trained)

    def _collect(self, batch: PackedPass, result: PassResult, measured: Measured) -> None:
        """Accumulate the gradient and the metrics of a pass; called in the order of the passes."""
        for parameter, gradient in zip(self._trained, result.gradients or (), strict=False):
            if gradient is None:
                continue
            if parameter.grad is None:
                parameter.grad = gradient
            else:
                parameter.grad += gradient
        self._optimizer.collect()
        if not batch.datums:
            return
        measured.add(batch, result.sums, result.logprobs, result.expert_load)
        flops = 0.0
        if self.decoder.config.ours:
            flops = pass_flops(self.decoder.config, batch, self.lora)
        self._meter.add(len(batch.input_ids), flops)

    def _compute(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, computed with all cores or the GPU of this rank."""
        if self._device.type == "cpu" and self._ranks.count == 1:
            return on_all_cores(work)
        for_training()
        return work()

    def _reference_pass(self, batch: PackedPass, top: int) -> PassResult:
        if self.reference is None and self.lora is None:
            raise UsageError(
                "KL needs a reference policy: give the trainer one, train with LoRA (whose base is it), or leave "
                "kl_coef and kl_advantage_coef at 0."
            )
        policy = self.reference or self.decoder
        without = disabled(self.decoder) if self.reference is None else nullcontext()
        with without:
            # The reference is a policy with routers of its own.
            result = pass_computer(policy).logprobs(replace(batch, experts=None), top)
        self._ranks.release(policy)
        return result


def default_pass_tokens(decoder: Decoder, at_once: int = 1) -> int:
    """Return the most tokens computed at once: `PASS_TOKENS`, or `PASS_TOKENS_ON_CPU` in each of the passes of a large model."""
    large = sum(parameter.numel() for parameter in decoder.parameters()) > SMALL_PARAMETERS
    if large and decoder.device.type == "cpu":
        return PASS_TOKENS_ON_CPU * at_once
    return PASS_TOKENS


def save_weights(decoder: Decoder, lora: LoraConfig | None, folder: Path, base: Path) -> bool:
    """Write an adapter or, without `lora`, a model to a new folder; see `Trainer.save_policy`."""
    folder.mkdir()
    if lora is not None:
        save_adapter(decoder, lora, folder, base=str(base))
        return False
    save_decoder(decoder, folder)
    return True
