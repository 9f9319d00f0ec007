"""Memory of a trainer and a sampler that share one GPU and one copy of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from hud.engine.config import DecoderConfig
from hud.engine.device_memory import SHORTER
from hud.engine.learn.memory_advice import training_remedies
from hud.engine.learn.optimizer_state import OptimizerOptions
from hud.engine.learn.options import TrainerOptions
from hud.engine.learn.training_pass import LOGITS_AT_ONCE
from hud.engine.models.reference_decoder import ReferenceDecoder
from hud.engine.sample.kv_cache import CacheSize, bytes_for
from hud.engine.sample.sampler import CACHE_BYTES, DEFAULT_SLOTS
from hud.errors import UsageError
from hud.train.planning.memory import PASS_TOKENS, TrainerMemory, Training, trainer_memory
from hud.train.planning.model_shapes import Machine, ModelShape

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
    logits: float
    """One chunk of the loss: tokens x vocabulary is never whole."""
    cache: float
    """Keys and values; 0 if servers sample the model."""
    usable: float
    """Memory less the share for the driver and fragmentation."""

    @property
    def left(self) -> float:
        """Usable memory that nothing takes; below 0: the plan does not fit."""
        return self.usable - self.trainer.total - self.logits - self.cache

    @property
    def remedies(self) -> list[str]:
        """Options that need less."""
        return [*training_remedies(self.options, lora=self.training == "lora"), SHORTER]


def shared_gpu(
    config: DecoderConfig, settings: Mapping[str, Any], machine: Machine, *, longest: int
) -> SharedGpu:
    """Return the plan of a model with the training settings of a `ModelConfig`, and runs of up to `longest` tokens.

    Raises `UsageError` for a model whose layers are those of `transformers`.
    """
    if not config.ours:
        raise UsageError(
            f"The memory of {config.model_type} models is not planned: only of Llama, Qwen2 and Qwen3."
        )
    dtype = getattr(torch, settings["dtype"])
    states, offload = settings["optimizer_states"], settings["offload_optimizer"]
    training: Training = "offload" if offload else "8bit" if states == "8bit" else "full"
    if settings["training"] == "lora":
        training = "lora"
    shape = shape_of(config)
    tokens = max(PASS_TOKENS, min(longest, config.max_position_embeddings))
    trainer = trainer_memory(
        shape,
        training,
        gpus=1,
        longest=tokens,
        rank=settings["lora_rank"],
        weight=dtype.itemsize,
        recompute=settings["recompute_layers"],
    )
    cache = 0.0
    if settings.get("vllm") is None:
        size = CacheSize.within(CACHE_BYTES, config, dtype, slots=DEFAULT_SLOTS, max_context=None)
        cache = float(bytes_for(config, size.pages + 1, size.page_tokens, dtype))
    return SharedGpu(
        parameters=int(shape.parameters),
        training=training,
        options=TrainerOptions(
            OptimizerOptions(states, offload), recompute_layers=settings["recompute_layers"]
        ),
        tokens=tokens,
        trainer=trainer,
        logits=float(LOGIT_BYTES * min(LOGITS_AT_ONCE["cuda"], tokens * config.vocab_size)),
        cache=cache,
        usable=machine.usable_bytes,
    )


def shape_of(config: DecoderConfig) -> ModelShape:
    """Return the dimensions of a model; its parameters are counted, not estimated."""
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in ReferenceDecoder(config).parameters())
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
