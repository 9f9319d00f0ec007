"""Rows of the registry as plain data: models and their checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, field_validator

from hud.engine.chat.tool_calls.formats import format_named
from hud.engine.sample.options import BESIDE_TRAINING, SLOT_LIMIT
from hud.errors import NotFoundError, StoreError, UsageError

_OF_RUN = re.compile(r"[0-9a-f]{32}:([0-9]{1,9})")
MOST_RANK = 4096
"""Largest rank of an adapter: its matrices are allocated when a model is trained first."""
OF_A_FORK = BESIDE_TRAINING | {"candidate"}
"""Settings that a fork sets without changing how it is trained."""
FOLDER = "hf"
"""Form of an export: a complete Hugging Face folder."""
PROMOTION = "promotion"
"""Key of a checkpoint's metrics: the record of its promotion."""
BASE = "base"
"""Name of the base weights where a checkpoint is expected."""


def _not_ours(name: str) -> str:
    if name.startswith("HUD_"):
        raise ValueError("a key of this platform is never sent to another server")
    return name


KeyName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*API_KEY$"), AfterValidator(_not_ours)]
"""Environment variable that holds a key. The pattern is narrow: a team that registers a URL must not be able to have the
server's other secrets sent there."""


class ProviderConfig(BaseModel, extra="forbid"):
    """Endpoint of a model that a provider serves."""

    url: str = Field(pattern=r"^https?://[^\s@?#]+$")
    dialect: str = "openai"
    """Family of dialects (`hud.inference.dialects.dialect`)."""
    key_env: KeyName | None = None
    """Environment variable of the server that holds the provider's key."""
    upstream_model: str | None = None
    """Name at the provider; None: the model's name on this platform."""
    price_in: float | None = Field(default=None, ge=0)
    """Dollars for a million prompt tokens."""
    price_out: float | None = Field(default=None, ge=0)


class ServersConfig(BaseModel, extra="forbid"):
    """Servers that sample a model while this platform trains it (`hud.engine.backends.sampling_servers`)."""

    kind: str = Field(min_length=1, max_length=100)
    """Name of their entry point."""
    urls: tuple[Annotated[str, Field(pattern=r"^https?://[^\s@?#]+$")], ...] = Field(min_length=1)
    key_env: KeyName | None = None
    """Environment variable of the platform that holds their key."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further settings, such as the transfer of weights, which their kind checks."""

    @field_validator("urls")
    @classmethod
    def _once(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        plain = tuple(url.rstrip("/") for url in urls)
        if len(set(plain)) < len(plain):
            raise ValueError("a server is listed twice")
        return plain

    def differs_in_urls_alone(self, other: ServersConfig | None) -> bool:
        """True if `other` has the same kind, key and settings: a policy that is sampled there can change its servers."""
        return other is not None and self == other.model_copy(update={"urls": self.urls})


class BackendConfig(BaseModel, extra="forbid"):
    """Training backend that samples and trains a model (`hud.engine.backends`)."""

    name: str = Field(min_length=1, max_length=100)
    """Name of its entry point."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Address, base model and whatever else the backend needs, which checks them."""


class ModelConfig(BaseModel, extra="forbid"):
    """Training settings and origin of a model."""

    training: Literal["full", "lora"] = "full"
    lora_rank: int = Field(default=16, ge=1, le=MOST_RANK)
    lora_alpha: float = Field(default=32.0, gt=0, allow_inf_nan=False)
    lora_targets: tuple[str, ...] = ()
    """Empty: every linear layer of attention and MLP."""
    lora_tower: bool = False
    """Adapters in the vision tower, too, of a model with pictures; False: it is frozen."""
    lora_seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of an adapter's initial weights."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of the computation; `hud models add` sets it to bfloat16 for a folder in bfloat16. On a CPU, float32 is used where it is faster, as for small models."""
    optimizer_states: Literal["float32", "8bit"] = "float32"
    """Precision of the optimizer's moments: 8 bytes for each trained weight, or 2."""
    offload_optimizer: bool = False
    """Keep the optimizer's state in the host's memory, not the GPU's."""
    compile_layers: bool = False
    """Train with layers compiled by `torch.compile`."""
    recompute_layers: bool = False
    """Activation checkpointing: less memory for each pass, and a second forward pass for the gradient."""
    router_replay: bool = False
    """Train with the experts by which each token was sampled, of a model with experts that is sampled here."""
    slots: int | None = Field(default=None, ge=1, le=SLOT_LIMIT)
    """Most sequences that are sampled at a time; None: by the memory of the device."""
    max_context: int | None = Field(default=None, ge=1)
    """Most tokens of one sequence; None: the model's context, as far as memory holds it."""
    cache_bytes: int | None = Field(default=None, ge=1)
    """Size of the sampler's key-value cache; None: what weights and training leave of the device's memory."""
    tool_call_parser: str | None = None
    """Format of the model's tool calls (`hud.engine.chat.tool_calls`); None: the format of its chat template."""
    reward_model: bool = False
    """Rate runs (`hud_platform.training.verdicts`), learn by `bradley_terry`, and answer no messages."""
    candidate: bool = False
    """For a fork: gated runs train it, and the head of its base moves through the gate only."""
    origin_checkpoint: str | None = None
    """For a fork: the checkpoint of another model from which it was forked."""
    source: str | None = None
    """Origin of the weights: a folder, a hub id, or a preset."""
    lineage: dict[str, str] = Field(default_factory=dict)
    """For an added export of OpenHUD: slugs of the models whose training is in its weights, by id."""
    provider: ProviderConfig | None = None
    """Endpoint of a model without weights on this platform."""
    backend: BackendConfig | None = None
    """Training backend with the weights; None: they are on this platform."""
    servers: ServersConfig | None = None
    """Servers that sample the model; None: this platform samples it."""

    @field_validator("tool_call_parser")
    @classmethod
    def _is_there(cls, name: str | None) -> str | None:
        if name is None:
            return None
        try:
            return format_named(name).names[0]
        except UsageError as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True)
class ModelRecord:
    """A registered model."""

    id: str
    team_id: str
    slug: str
    name: str
    folder: Path
    """Hugging Face folder of the base weights, tokenizer and chat template; forks share it."""
    kind: str
    created_at: datetime
    base_model_id: str | None = None
    head_checkpoint_id: str | None = None
    """Checkpoint that serves; None: the base weights."""
    config: ModelConfig = field(default_factory=ModelConfig)

    def check_answers(self) -> None:
        """Raise `UsageError` for a reward model, which answers no messages."""
        if self.config.reward_model:
            raise UsageError(
                f"{self.slug!r} is a reward model, which rates runs and answers no messages: give it to --judge, or to "
                "hud.graders.RewardModelGrader."
            )


@dataclass(frozen=True)
class CheckpointRecord:
    """Node of a model's checkpoint tree."""

    id: str
    model_id: str
    parent_id: str | None
    """None: trained from the base weights."""
    step: int
    name: str
    folder: Path | None
    """None after its files were deleted."""
    created_at: datetime
    mean_reward: float | None = None
    learning_rate: float | None = None
    loss_fn: str | None = None
    num_traces: int | None = None
    num_datums: int | None = None
    num_tokens: int | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    system_prompt: str | None = None
    """System prompt with which the weights are served and trained; None: no prompt of the model's own."""

    @property
    def trained_reward(self) -> float | None:
        """Mean reward of the runs in the gradient; `mean_reward` is the mean over all measured runs of the step."""
        return self.metrics.get("trained_reward:mean")

    @property
    def training_step(self) -> int | None:
        """Step of its training run, counted from 1; None if no training run made it."""
        made = _OF_RUN.fullmatch(str(self.metrics.get("idempotency_key", "")))
        return None if made is None else int(made[1]) + 1


@dataclass(frozen=True)
class Weights:
    """Files of a policy."""

    folder: Path
    """Complete Hugging Face folder."""
    adapter: Path | None = None
    """Adapter to apply to it."""


@contextmanager
def missing_files_named(model: ModelRecord) -> Iterator[None]:
    """Raise `StoreError` with its cure for a file that a model has lost: the model itself is found."""
    try:
        yield
    except NotFoundError as error:
        raise StoreError(
            f"The model {model.slug!r} has lost a file: {error} Restore it from a copy, or remove the model and add it again: "
            f"hud models rm {model.slug}"
        ) from error
