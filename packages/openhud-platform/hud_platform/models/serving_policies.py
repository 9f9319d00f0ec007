"""Serving policies: a model's policy that follows its head, shared by serving and training."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from hud.engine.cpu_threads import on_all_cores
from hud.engine.decoder import Decoder
from hud.engine.first_pass import sample_first, train_first
from hud.engine.learn.distributed import open_trainer
from hud.engine.learn.optimizer_state import OptimizerOptions
from hud.engine.learn.options import TrainerOptions
from hud.engine.learn.scoring import scored_by
from hud.engine.learn.step_meter import TRANSIENT
from hud.engine.lora import DEFAULT_TARGETS, LoraConfig, load_adapter, lora_parameters
from hud.engine.memory.one_gpu import training_bytes
from hud.engine.policy import Policy
from hud.engine.pretrained import load_weights
from hud.engine.sample.cache_budget import budget_of
from hud.engine.sample.options import SamplerOptions
from hud.engine.trainer import Trainer
from hud.learning.datums import Datum
from hud_platform.models.records import ModelConfig, ModelRecord, Weights


class Serving(ABC):
    """Policy of a model at its head, wherever its weights are."""

    def __init__(self, model: ModelRecord, policy: Policy) -> None:
        self.model_id = model.id
        self.config = model.config
        self.policy = policy
        self.lock = threading.RLock()
        """Held while weights and head change, so that every reader sees a consistent pair."""

    @abstractmethod
    def open_trainer(self) -> Trainer:
        """Return a trainer of the policy's weights."""

    @abstractmethod
    def warm_up(self, trainer: Trainer) -> None:
        """Compile and allocate what the first turn and the first training pass need, once. Blocks."""

    @abstractmethod
    def score(self, datums: Sequence[Datum], top: int) -> list[Datum]:
        """Return the datums with the policy's logprobs, and its `top` likeliest tokens, as their reference. Blocks."""

    @abstractmethod
    def stepped(self, measured: Mapping[str, float]) -> None:
        """Fit the sampler's cache to the memory that an optimizer step was measured to take."""

    @abstractmethod
    def move(self, model: ModelRecord, checkpoint_id: str | None) -> None:
        """Load another checkpoint into the policy, in place. Raises `ConflictError` for a pruned one."""


class LocalServing(Serving):
    """A policy whose trained weights are in this process, and those of other ranks."""

    def __init__(
        self,
        model: ModelRecord,
        policy: Policy,
        fresh_adapter: dict[str, torch.Tensor],
        find: Callable[[ModelRecord, str | None], Weights],
        prompt_of: Callable[[str | None], str | None],
    ) -> None:
        """`fresh_adapter`: the adapter before any step. `find` returns the verified files of a checkpoint, `prompt_of` its prompt."""
        super().__init__(model, policy)
        self._fresh_adapter = fresh_adapter
        self._find, self._prompt_of = find, prompt_of
        self._warm = False

    def open_trainer(self) -> Trainer:
        decoder = self.policy.decoder
        planned = training_bytes(decoder, self.config.model_dump())
        budget_of(decoder.device).reserve(self, planned)
        return open_trainer(
            decoder,
            lora=lora_config(self.config),
            options=trainer_options(self.config),
            beside=self.policy.beside,
        )

    def warm_up(self, trainer: Trainer) -> None:
        if self._warm:
            return
        with self.lock:
            if self.config.servers is None:
                sample_first(self.policy)
            train_first(trainer, self.policy.decoder)
        self._warm = True

    def score(self, datums: Sequence[Datum], top: int) -> list[Datum]:
        with self.lock:
            return on_all_cores(lambda: scored_by(self.policy.decoder, datums, top))

    def stepped(self, measured: Mapping[str, float]) -> None:
        transient = measured.get(TRANSIENT)
        if transient is not None:
            budget_of(self.policy.decoder.device).measured(self, int(transient))

    def move(self, model: ModelRecord, checkpoint_id: str | None) -> None:
        weights = self._find(model, checkpoint_id)
        with self.lock, self.policy.exclusive():
            decoder = self.policy.decoder
            if self.config.training == "lora":
                _set_adapter(decoder, weights.adapter, self._fresh_adapter)
            else:
                load_weights(decoder, weights.folder)
            self.policy.checkpoint = checkpoint_id
            self.policy.system_prompt = self._prompt_of(checkpoint_id)


def lora_config(config: ModelConfig) -> LoraConfig | None:
    """Return the adapter's shape for training a model; None for full fine-tuning."""
    if config.training == "full":
        return None
    targets = config.lora_targets or DEFAULT_TARGETS
    return LoraConfig(
        rank=config.lora_rank,
        alpha=config.lora_alpha,
        targets=targets,
        tower=config.lora_tower,
        seed=config.lora_seed,
    )


def sampler_options(config: ModelConfig) -> SamplerOptions:
    """Return the options of a model's sampler."""
    return SamplerOptions(config.slots, config.max_context, config.cache_bytes)


def trainer_options(config: ModelConfig) -> TrainerOptions:
    """Return the training options of a model that affect memory and speed."""
    return TrainerOptions(
        OptimizerOptions(states=config.optimizer_states, offload=config.offload_optimizer),
        compile_layers=config.compile_layers,
        recompute_layers=config.recompute_layers,
    )


@torch.no_grad()
def _set_adapter(decoder: Decoder, adapter: Path | None, fresh: dict[str, torch.Tensor]) -> None:
    if adapter is not None:
        load_adapter(decoder, adapter)
        return
    for name, parameter in lora_parameters(decoder).items():
        parameter.copy_(fresh[name])
