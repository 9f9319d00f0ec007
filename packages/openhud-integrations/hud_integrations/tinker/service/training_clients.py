"""Training clients: each trains a model of its own, a fork of its base model or of a checkpoint.

Requests carry numbers and run in their order. Optimizer steps make no checkpoint; saves do, and move the model's head, so
what the gateway serves is what was saved last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, TypeAdapter

from hud.client.contributor import Contributor
from hud.errors import ConflictError, HudError, NotFoundError, PlatformError, UsageError
from hud.learning.datum_calls import (
    DatumPassRequest,
    DatumPassResult,
    LoadRequest,
    SavedState,
    SaveRequest,
    StepMetrics,
    StepRequest,
)
from hud.learning.training_calls import CloseRequest, DiscardRequest, OpenRequest
from hud_integrations.tinker.service import checkpoint_paths as paths
from hud_integrations.tinker.service.base_models import base_named
from hud_integrations.tinker.service.client_sessions import TinkerSession
from hud_integrations.tinker.service.futures import PROTOBUF, Answer, Turns
from hud_integrations.tinker.service.image_chunks import with_images
from hud_integrations.tinker.service.wire.messages import ForwardBackward, write_pass_result
from hud_integrations.tinker.service.wire.requests import (
    CreateModel,
    LoadWeights,
    OptimStep,
    SaveWeights,
    SaveWeightsForSampler,
)
from hud_platform.access.identity import Identity
from hud_platform.models.records import ModelConfig, ModelRecord
from hud_platform.models.registry import Registry
from hud_platform.serving.token_engine import TokenEngine

SNAPSHOTS = 8
"""Unnamed saves whose files are kept for sampling clients; older ones are deleted."""
LORA_ALPHA = 32.0
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass
class TrainingClient:
    """A model in training by one client, in this process."""

    registry: Registry
    """Models of the client's team."""
    name: str
    """`SESSION:train:NUMBER`, which clients derive themselves."""
    model_id: str
    client: Contributor
    holder: str
    """Holder of the key that made it, who alone trains it."""
    user_metadata: dict[str, Any] | None = None
    turns: Turns = field(default_factory=Turns)
    last_request: datetime = field(default_factory=lambda: datetime.now(UTC))
    snapshots: list[str] = field(default_factory=list)
    """Checkpoints of unnamed saves, oldest first."""
    failed_at: float | None = None
    """Monotonic time at which a pass failed, until the next step."""
    ahead: bool = False
    """True while the weights include steps that no checkpoint holds."""


class TrainingClients:
    """Training clients of every team, in this process."""

    def __init__(self, engine: Callable[[], TokenEngine]) -> None:
        self._engine = engine
        self._known: dict[str, TrainingClient] = {}

    def get(self, name: str, who: Identity) -> TrainingClient:
        """Return a client's model. Raises `NotFoundError` for one that this process does not train, `PlatformError` 403 for
        one of another key of the team.
        """
        training = self._known.get(name)
        if training is None or training.registry.team != who.team_id:
            raise NotFoundError(
                f"No training client has the model {name!r} here: the server was started again since it was made. Make one "
                "of its last save: create_training_client_from_state_with_optimizer."
            )
        if training.holder != who.holder:
            raise PlatformError(
                f"Another key of your team trains {name!r}. Make a client of its last save: "
                "create_training_client_from_state_with_optimizer.",
                403,
            )
        training.last_request = datetime.now(UTC)
        return training

    def held(self, name: str) -> TrainingClient | None:
        """Return a client's model, if this process trains it."""
        return self._known.get(name)

    def all(self) -> list[TrainingClient]:
        """Return every client."""
        return list(self._known.values())

    def is_ahead(self, model_id: str) -> bool:
        """True if the weights in training differ from the model's head."""
        return any(
            training.model_id == model_id and training.ahead for training in self._known.values()
        )

    async def create(self, registry: Registry, session: TinkerSession, body: CreateModel) -> Answer:
        """Fork the base model, and load the fork for training. Raises `UsageError` for adapters on no layer."""
        name = f"{session.id}:train:{body.model_seq_id}"
        config = ModelConfig(training="full")
        if body.lora_config is not None:
            lora = body.lora_config
            targets = (*(_ATTENTION * lora.train_attn), *(_MLP * lora.train_mlp))
            if not targets:
                raise UsageError(
                    "Adapters of this platform are on attention and MLP layers: set train_attn or train_mlp."
                )
            config = ModelConfig(
                training="lora",
                lora_rank=lora.rank,
                lora_alpha=LORA_ALPHA,
                lora_targets=targets,
                lora_seed=lora.seed or 0,
            )

        def forked() -> ModelRecord:
            return registry.fork(base_named(registry, body.base_model).id, name, config=config)

        model = await asyncio.to_thread(forked)
        await self._begin(registry, session, model, body.user_metadata)
        return Answer.of(model_id=name, type="create_model")

    async def create_from(
        self, registry: Registry, session: TinkerSession, body: LoadWeights
    ) -> Answer:
        """Fork the checkpoint of a path, with its optimizer state if the request says so."""
        name = f"{session.id}:train:{body.model_seq_id}"

        def forked() -> ModelRecord:
            source, checkpoint = paths.resolve(registry, body.path)
            model = registry.fork(source.id, name, checkpoint=checkpoint)
            if body.optimizer and checkpoint is not None:
                node = registry.tree.adopt(model, registry.tree.get(checkpoint))
                registry.tree.set_head(model, node.id)
            return registry.model(model.id)

        model = await asyncio.to_thread(forked)
        await self._begin(registry, session, model, body.user_metadata)
        return Answer.of(path=body.path, model_id=name, type="load_weights")

    async def forward_backward(self, training: TrainingClient, body: ForwardBackward) -> Answer:
        """Compute a pass.

        A failed one discards the gradient. Clients send a batch in parts, and no step may apply some of them: raises
        `UsageError` for a pass that was received before one failed.
        """
        failed_at = training.failed_at
        if failed_at is not None and body.received < failed_at and not body.forward_only:
            raise UsageError("A part of the same batch failed; send the whole batch again.")
        try:
            if body.fault is not None:
                raise body.fault
            datums = body.datums
            if body.chunks:
                folder = (
                    await asyncio.to_thread(training.registry.model, training.model_id)
                ).folder
                datums = await asyncio.to_thread(with_images, datums, body.chunks, folder)
            request = DatumPassRequest(
                datums=datums,
                loss_fn=body.loss_fn,
                loss_fn_config=body.loss_fn_config,
                forward_only=body.forward_only,
            )
            result = await self._call(training, request, DatumPassResult)
        except HudError:
            if not body.forward_only:
                training.failed_at = time.monotonic()
                await self._call(training, DiscardRequest())
            raise
        return Answer(write_pass_result(result, body.datums), PROTOBUF)

    async def optim_step(self, training: TrainingClient, body: OptimStep) -> Answer:
        """Update the weights."""
        training.failed_at = None
        params = body.params
        request = StepRequest(
            learning_rate=params.learning_rate,
            beta1=params.beta1,
            beta2=params.beta2,
            eps=params.eps,
            weight_decay=params.weight_decay,
            max_grad_norm=params.grad_clip_norm if params.grad_clip_norm > 0 else None,
        )
        result = await self._call(training, request, StepMetrics)
        training.ahead = True
        return Answer.of(metrics={**result.metrics, "step:max": float(result.step)})

    async def save_weights(self, training: TrainingClient, body: SaveWeights, kind: str) -> Answer:
        """Save a checkpoint under a name."""
        checkpoint = await self.save(training)
        name = body.path or checkpoint
        saved = await asyncio.to_thread(self._named, training, checkpoint, f"{kind}/{name}", body)
        return Answer.of(path=saved.path)

    async def save_for_sampler(
        self, training: TrainingClient, session_id: str, body: SaveWeightsForSampler
    ) -> Answer:
        """Save a checkpoint for sampling: under a name, or for a sampling client of its own."""
        checkpoint = await self.save(training)
        if body.path is not None:
            key = f"sampler_weights/{body.path}"
            saved = await asyncio.to_thread(self._named, training, checkpoint, key, body)
            return Answer.of(path=saved.path)
        if not training.snapshots or training.snapshots[-1] != checkpoint:
            training.snapshots.append(checkpoint)
        await asyncio.to_thread(_drop_snapshots, training)
        pinned = None if body.kind == "inflight" else checkpoint
        number = body.sampling_session_seq_id or 0
        return Answer.of(
            sampling_session_id=sampler_id(session_id, number, training.model_id, pinned)
        )

    async def load_weights(self, training: TrainingClient, body: LoadWeights) -> Answer:
        """Continue a model from another checkpoint, its own or of a model of the same shape; another one is a `UsageError`."""

        def chosen() -> tuple[ModelRecord, str | None]:
            registry = training.registry
            model = registry.model(training.model_id)
            source, checkpoint = paths.resolve(registry, body.path)
            if source.id == model.id or checkpoint is None:
                return model, checkpoint
            if (source.folder, shape_of(source)) != (model.folder, shape_of(model)):
                raise UsageError(
                    f"{body.path} is of another shape or base than this model; make a client of it with "
                    "create_training_client_from_state."
                )
            return model, registry.tree.adopt(model, registry.tree.get(checkpoint)).id

        model, checkpoint = await asyncio.to_thread(chosen)
        request = LoadRequest(checkpoint=checkpoint, optimizer=body.optimizer)
        await self._engine().call(model, request, training.client)
        training.ahead = False
        return Answer.of(path=body.path, model_id=training.name, type="load_weights")

    async def save(self, training: TrainingClient) -> str:
        """Save the weights, unless the head holds them; returns the checkpoint."""
        saved: SavedState = await self._call(training, SaveRequest(), SavedState)
        training.ahead = False
        return saved.checkpoint_id

    async def release(self, name: str) -> None:
        """Save unsaved steps, and release the model for other trainers. Its client may continue at any time."""
        training = self._known.get(name)
        if training is None:
            return
        try:
            if training.ahead:
                await self.save(training)
            await self._call(training, CloseRequest())
        except NotFoundError:
            del self._known[name]  # The model was removed.
        except ConflictError:
            pass  # Another trainer has taken it over.

    async def _begin(
        self,
        registry: Registry,
        session: TinkerSession,
        model: ModelRecord,
        user_metadata: dict[str, Any] | None,
    ) -> None:
        client = Contributor(model.name, f"Tinker's client of the session {session.id}")
        training = TrainingClient(
            registry, model.name, model.id, client, session.holder, user_metadata
        )
        await self._call(training, OpenRequest())
        self._known[model.name] = training
        session.runs.append(model.name)

    async def _call(
        self, training: TrainingClient, body: BaseModel, answer: type[Any] | None = None
    ) -> Any:
        """Return the result of an engine's call on a client's model."""
        model = await asyncio.to_thread(training.registry.model, training.model_id)
        result = await self._engine().call(model, body, training.client)
        return None if answer is None else TypeAdapter(answer).validate_json(result)

    def _named(
        self,
        training: TrainingClient,
        checkpoint: str,
        key: str,
        body: SaveWeights | SaveWeightsForSampler,
    ) -> paths.Save:
        registry = training.registry
        model = registry.model(training.model_id)
        return paths.add(
            registry,
            model,
            checkpoint,
            key,
            ttl_seconds=body.ttl_seconds,
            user_metadata=body.user_metadata,
            overwrite=getattr(body, "overwrite", False),
        )


def sampler_id(session_id: str, number: int, model_id: str, checkpoint: str | None) -> str:
    """Return the id of a sampling client, from which any server finds its weights; `checkpoint` None: the model's head."""
    return f"{session_id}:sample:{number}:{model_id}:{checkpoint or 'head'}"


def shape_of(model: ModelRecord) -> tuple[Any, ...]:
    """Return what two models must have in common to exchange checkpoints."""
    config = model.config
    if config.training == "full":
        return ("full",)
    return ("lora", config.lora_rank, config.lora_alpha, config.lora_targets)


def _drop_snapshots(training: TrainingClient) -> None:
    model = training.registry.model(training.model_id)
    while len(training.snapshots) > SNAPSHOTS:
        paths.drop_files(training.registry, model, training.snapshots.pop(0))
