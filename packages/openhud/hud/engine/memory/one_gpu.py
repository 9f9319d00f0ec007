"""Memory of a trainer and a sampler that share one GPU and one copy of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from hud.engine.config import DecoderConfig
from hud.engine.decoder import Decoder
from hud.engine.device_memory import SHORTER
from hud.engine.learn.memory_advice import training_remedies
from hud.engine.learn.optimizer_state import OptimizerOptions
from hud.engine.learn.options import TrainerOptions
from hud.engine.learn.training_pass import LOGITS_AT_ONCE
from hud.engine.memory.model_shapes import Machine, ModelShape
from hud.engine.memory.tower import Tower
from hud.engine.memory.trainer_memory import (
    PASS_TOKENS,
    TrainerMemory,
    Training,
    trainer_memory,
    with_adapter,
)
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.cache_budget import PLANNED_LEAST
from hud.engine.sample.kv_cache import CacheSize, most_bytes
from hud.engine.sample.options import most_slots, slots_within
from hud.errors import UsageError

LOGIT_BYTES = 10
"""Bytes of a logit in the backward pass: its probability and its gradient in fp32, and that in bf16."""


@dataclass(frozen=True)
class SharedGpu:
    """Bytes of one GPU that trains a model and samples it."""

    parameters: int
    training: Training
    options: TrainerOptions
    tokens: int
    """Tokens of the largest training pass."""
    trainer: TrainerMemory
    tower_parameters: int
    """Of the vision tower, among `parameters`; 0 for a model of text."""
    tower: float
    """Activations of the vision tower, if all tokens of the pass are pictures."""
    pixels: float
    """Of those pictures."""
    logits: float
    """One chunk of the loss: tokens x vocabulary is never whole."""
    cache: float
    """Keys and values: what the rest leaves, as far as the sampler can use it; 0 if servers sample the model."""
    cached_tokens: int
    """Tokens that the cache holds, of all sequences together."""
    slots: int
    """Sequences that are sampled at a time."""
    usable: float
    """Memory less the share for the driver and fragmentation."""

    @property
    def left(self) -> float:
        """Usable memory that nothing takes; below 0: the plan does not fit."""
        return self.usable - self.trainer.total - self.passing - self.cache

    @property
    def passing(self) -> float:
        """Bytes of a pass beside the layers' activations."""
        return self.tower + self.pixels + self.logits

    @property
    def remedies(self) -> list[str]:
        """Options that need less."""
        return [*training_remedies(self.options, lora=self.training == "lora"), SHORTER]


def shared_gpu(
    config: DecoderConfig,
    settings: Mapping[str, Any],
    machine: Machine,
    *,
    longest: int,
    tower: Tower | None = None,
) -> SharedGpu:
    """Return the plan of a model with the training settings of a `ModelConfig`, and runs of up to `longest` tokens.

    Raises `UsageError` for a model of text whose layers are those of `transformers`.
    """
    if not config.ours and tower is None:
        raise UsageError(
            f"The memory of {config.model_type} models is not planned: only of Llama, Qwen2 and Qwen3, and of models with a "
            "vision tower."
        )
    dtype = getattr(torch, settings["dtype"])
    states, offload = settings["optimizer_states"], settings["offload_optimizer"]
    training = _training(settings)
    rank = settings["lora_rank"]
    shape = (
        shape_of(config)
        if tower is None
        else _shape(config, tower.parameters + tower.text_parameters)
    )
    tokens = max(PASS_TOKENS, min(longest, config.max_position_embeddings))
    trainer = trainer_memory(
        shape,
        training,
        gpus=1,
        longest=tokens,
        rank=rank,
        weight=dtype.itemsize,
        recompute=settings["recompute_layers"],
    )
    seen, pixels = 0.0, 0.0
    if tower is not None:
        trained = training != "lora" or settings.get("lora_tower", False)
        seen = float(
            tower.activation_bytes(
                tokens,
                weight=dtype.itemsize,
                trained=trained,
                recompute=settings["recompute_layers"],
            )
        )
        pixels = float(tower.pixel_bytes(tokens, weight=dtype.itemsize))
        if training == "lora" and trained:
            trainer = with_adapter(trainer, tower.adapter_parameters(rank))
    logits = float(LOGIT_BYTES * min(LOGITS_AT_ONCE["cuda"], tokens * config.vocab_size))
    cache, cached_tokens, slots = 0.0, 0, 0
    if settings.get("servers") is None:
        room = machine.usable_bytes - trainer.total - logits - seen - pixels
        cache, cached_tokens, slots = _cache(config, dtype, settings, int(room))
    return SharedGpu(
        parameters=int(shape.parameters),
        training=training,
        options=TrainerOptions(
            OptimizerOptions(states, offload), recompute_layers=settings["recompute_layers"]
        ),
        tokens=tokens,
        trainer=trainer,
        tower_parameters=0 if tower is None else tower.parameters,
        tower=seen,
        pixels=pixels,
        logits=logits,
        cache=cache,
        cached_tokens=cached_tokens,
        slots=slots,
        usable=machine.usable_bytes,
    )


def _cache(
    config: DecoderConfig, dtype: torch.dtype, settings: Mapping[str, Any], room: int
) -> tuple[float, int, int]:
    """Return the bytes of a sampler's cache, the tokens that it holds, and the sequences at a time."""
    context = settings.get("max_context")
    most = settings.get("slots") or most_slots("cuda")
    wanted = most_bytes(config, dtype, slots=most, max_context=context)
    budget = settings.get("cache_bytes") or min(wanted, max(room, PLANNED_LEAST))
    size = CacheSize.within(budget, config, dtype, slots=most, max_context=context)
    tokens = size.pages * size.page_tokens
    return (
        float(size.nbytes(config, dtype)),
        tokens,
        settings.get("slots") or slots_within(tokens, "cuda"),
    )


def training_bytes(decoder: Decoder, settings: Mapping[str, Any]) -> int:
    """Return what training takes of a device beside the weights, with the training settings of a `ModelConfig`.

    An upper estimate for the longest pass of `PASS_TOKENS` tokens, of one rank of several.
    """
    config = decoder.config
    parameters = sum(parameter.numel() for parameter in decoder.parameters())
    trainer = trainer_memory(
        _shape(config, parameters),
        _training(settings),
        gpus=1,
        longest=1,
        rank=settings["lora_rank"],
        weight=decoder.dtype.itemsize,
        recompute=settings["recompute_layers"],
    )
    ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    states = (trainer.gradients + trainer.optimizer) / ranks
    logits = LOGIT_BYTES * min(LOGITS_AT_ONCE["cuda"], PASS_TOKENS * config.vocab_size)
    return int(states + trainer.activations + logits)


def _training(settings: Mapping[str, Any]) -> Training:
    if settings["training"] == "lora":
        return "lora"
    if settings["offload_optimizer"]:
        return "offload"
    return "8bit" if settings["optimizer_states"] == "8bit" else "full"


def shape_of(config: DecoderConfig) -> ModelShape:
    """Return the dimensions of a model; its parameters are counted, not estimated."""
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in ReferenceDecoder(config).parameters())
    return _shape(config, parameters)


def _shape(config: DecoderConfig, parameters: int) -> ModelShape:
    return ModelShape(
        config.model_type,
        parameters,
        config.num_hidden_layers,
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
    )
