"""Bodies of Tinker's requests, as tinker 0.38 sends them. Fields that change nothing here are read and ignored; a field that
this platform cannot honour is refused where it is used."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Base64Bytes, BaseModel, BeforeValidator, Field

from hud.errors import UsageError
from hud_integrations.tinker.service.wire.chunks import ImageChunk, InputChunk
from hud_integrations.tinker.service.wire.target_ids import TargetIds
from hud_platform.models.records import MOST_RANK


class Body(BaseModel):
    """Body of a request. Newer clients may send more than is known here."""


MOST_METADATA = 16_384
"""Size of the metadata that a client may store with a session, a model or a save, as JSON."""


def _bounded(value: dict[str, Any] | None) -> dict[str, Any] | None:
    size = 0 if value is None else len(json.dumps(value))
    if size > MOST_METADATA:
        raise ValueError(f"has {size:,} bytes; it may have {MOST_METADATA:,}")
    return value


Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Metadata = Annotated[dict[str, Any] | None, AfterValidator(_bounded)]
TextMetadata = Annotated[dict[str, str] | None, AfterValidator(_bounded)]


class CreateSession(Body):
    """Begin a session."""

    user_metadata: Metadata = None
    sdk_version: str = Field(default="", max_length=200)
    display_name: str | None = Field(default=None, max_length=1000)


class OfSession(Body):
    """A session."""

    session_id: str


class LoraShape(Body):
    """Adapter of a new model."""

    rank: int = Field(ge=1, le=MOST_RANK)
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    train_mlp: bool = True
    train_attn: bool = True


class Optimizer(Body):
    """Optimizer of a new model."""

    type: str = "adamw"

    def check(self) -> None:
        """Raise `UsageError` for an optimizer that is not AdamW."""
        if self.type != "adamw":
            raise UsageError(f"There is no optimizer {self.type!r} here; there is adamw.")


class CreateModel(OfSession):
    """Make a training client."""

    model_seq_id: Count
    base_model: str
    user_metadata: Metadata = None
    lora_config: LoraShape | None = None
    """None: full fine-tuning."""
    optimizer_config: Optimizer = Field(default_factory=Optimizer)


class OfModel(Body):
    """A model in training."""

    model_id: str


class Numbered(OfModel):
    """A request of a training client."""

    seq_id: int = Field(ge=1, lt=1 << 63)


class AdamParams(Body):
    """Parameters of a step, with Tinker's defaults."""

    learning_rate: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-12, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    grad_clip_norm: float = Field(default=0.0, allow_inf_nan=False)
    """0: no limit."""


class OptimStep(Numbered):
    """Update the weights."""

    adam_params: AdamParams | None = None
    optimizer_params: dict[str, Any] | None = None

    @property
    def params(self) -> AdamParams:
        """The parameters. Raises `UsageError` for those of another optimizer."""
        if self.adam_params is None:
            kind = (self.optimizer_params or {}).get("type", "unknown")
            raise UsageError(f"There is no optimizer {kind!r} here; send AdamParams.")
        return self.adam_params


TimeToLiveSeconds = Annotated[int, Field(le=100 * 365 * 86_400)]


class SaveWeights(Numbered):
    """Save a checkpoint with its optimizer state."""

    path: str | None = None
    ttl_seconds: TimeToLiveSeconds | None = None
    overwrite: bool = False
    user_metadata: TextMetadata = None
    age_encryption_recipients: list[str] | None = None


class SaveWeightsForSampler(Numbered):
    """Save a checkpoint for sampling."""

    path: str | None = None
    sampling_session_seq_id: Count | None = None
    kind: Literal["snapshot", "inflight"] = "snapshot"
    ttl_seconds: TimeToLiveSeconds | None = None
    user_metadata: TextMetadata = None


class LoadWeights(Body):
    """Load a checkpoint into a model, or make a model of it."""

    model_id: str | None = None
    seq_id: Count | None = None
    session_id: str | None = None
    model_seq_id: Count | None = None
    user_metadata: Metadata = None
    path: str
    optimizer: bool = False
    optimizer_config: Optimizer | None = None


class CreateSamplingSession(OfSession):
    """Make a sampling client."""

    sampling_session_seq_id: Count
    base_model: str | None = None
    model_path: str | None = None


class Chunk(Body):
    """Part of a prompt."""

    type: str = "encoded_text"
    tokens: list[int] = Field(default_factory=list)
    data: Base64Bytes = b""
    """File of an image."""
    expected_tokens: Count | None = None
    """Number of an image's tokens according to the client."""


class Prompt(Body):
    """Prompt as token ids and images."""

    chunks: list[Chunk]

    @property
    def inputs(self) -> list[InputChunk]:
        """The chunks. Raises `UsageError` for images by their address, and for audio."""
        return [_input(chunk) for chunk in self.chunks]

    @property
    def ids(self) -> list[int]:
        """The token ids of a prompt of text. Raises `UsageError` for another one."""
        other = next((chunk.type for chunk in self.chunks if chunk.type != "encoded_text"), None)
        if other is not None:
            raise UsageError(
                f"The prompt holds {other!r}; logprobs of prompts are computed for token ids alone."
            )
        return [token for chunk in self.chunks for token in chunk.tokens]

    @property
    def length(self) -> int:
        """Number of tokens, with as many for each image as the client expects."""
        return sum(len(chunk.tokens) + (chunk.expected_tokens or 0) for chunk in self.chunks)


def _input(chunk: Chunk) -> InputChunk:
    if chunk.type == "encoded_text":
        return chunk.tokens
    if chunk.type == "image":
        return ImageChunk(chunk.data, chunk.expected_tokens)
    if chunk.type == "image_asset_pointer":
        raise UsageError(
            "The prompt holds an image by its address, which is not fetched here; send its file as an image chunk."
        )
    raise UsageError(f"The prompt holds {chunk.type!r}; models here take token ids and images.")


def _listed(stop: Any) -> Any:
    return [stop] if isinstance(stop, str) else stop


class Sampling(Body):
    """Parameters of sampling."""

    max_tokens: int | None = Field(default=None, ge=1, lt=1 << 63)
    seed: int | None = None
    stop: Annotated[list[int] | list[str] | None, BeforeValidator(_listed)] = None
    """None: the model's end-of-turn tokens; empty: nothing."""
    temperature: float = Field(default=1.0, ge=0, le=1e6)
    top_k: int = Field(default=-1, lt=1 << 63)
    top_p: float = Field(default=1.0, gt=0, le=1)

    @property
    def text_stops(self) -> tuple[str, ...]:
        """The texts of `stop`."""
        return tuple(text for text in self.stop or () if isinstance(text, str) and text)

    def seed_of(self, number: int) -> int | None:
        """Return the seed of the n-th sequence; that of the first is the request's own. None without a seed."""
        if self.seed is None:
            return None
        seed = self.seed % (1 << 63)
        if not number:
            return seed
        return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> 1)


class Sample(Body):
    """Sample sequences."""

    sampling_session_id: str | None = None
    seq_id: Count | None = None
    base_model: str | None = None
    model_path: str | None = None
    num_samples: int = Field(default=1, ge=1, le=1024)
    prompt: Prompt
    sampling_params: Sampling
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0)
    topk_sample_logprobs: int = Field(default=0, ge=0)
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)
    target_prompt_logprobs: TargetIds | None = None
    prompt_alt_tokens_k: int = Field(default=0, ge=0)
    record_stability_info: bool | None = None


class Retrieve(Body):
    """Fetch the result of a request."""

    request_id: str


class WeightsPath(Body):
    """A checkpoint's path."""

    tinker_path: str


class TimeToLive(Body):
    """New time to live of a checkpoint; None: no end."""

    ttl_seconds: TimeToLiveSeconds | None = None


class Finish(Body):
    """End a session."""

    reason: dict[str, Any] = Field(default_factory=dict)
    detail: str | None = None
