"""A model in training: its position in the checkpoint tree, optimizer steps, and saving.
All methods are called on the thread of the model's session, under its lease.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

from hud.engine.decoder import Decoder
from hud.engine.models.tensor_file import write_tensors
from hud.engine.pretrained import load_decoder, weight_bytes
from hud.engine.sample.cache_budget import budget_of
from hud.errors import HudError, NotFoundError, StoreError
from hud.learning.metrics import merge
from hud.learning.wire_types import OptimStepRequest, OptimStepResult
from hud.trace import new_id
from hud_platform.models.checkpoint_files import (
    SAMPLER,
    STATE,
    Manifest,
    link_or_copy,
    read_manifest,
    write_checkpoint,
)
from hud_platform.models.checkpoint_tree import REQUEST, node_name
from hud_platform.models.records import CheckpointRecord, ModelRecord
from hud_platform.models.weight_sources import place_companions
from hud_platform.training.gradient_accumulation import Accumulated
from hud_platform.training.unsaved_steps import UnsavedSteps

if TYPE_CHECKING:
    from hud_platform.models.loaded_policies import Policies
    from hud_platform.models.registry import Registry


@dataclass(frozen=True)
class _Step:
    """An optimizer step."""

    body: OptimStepRequest
    measured: dict[str, float]
    request: str | None
    """Digest of its request."""


@dataclass(frozen=True)
class _Unsaved:
    """Steps since the last checkpoint."""

    count: int
    last: _Step


class TrainedModel:
    """Trainer of a model's serving weights, with its checkpoints."""

    def __init__(self, registry: Registry, policies: Policies, model: ModelRecord) -> None:
        self.registry, self.policies, self.model = registry, policies, model
        registry.tree.clean(model)
        self._on_disk = UnsavedSteps(registry.tree, model.id)
        self.serving = policies.serving(model)
        self.trainer = self.serving.open_trainer()
        self.broken = False
        """True if the weights are in an unknown state."""
        self._steps: dict[str, int] = {}
        self._saved: str | None = None
        self._unsaved: _Unsaved | None = None
        self._applied: dict[str, str] = {}
        """Checkpoints from the base to the head, by the idempotency keys of their requests."""
        self._load(model.head_checkpoint_id)

    @property
    def head(self) -> str | None:
        """Parent of the next checkpoint."""
        return self._saved if self._unsaved else self.serving.policy.checkpoint

    @property
    def step(self) -> int:
        """Number of optimizer steps: those of the head, and unsaved ones."""
        saved = 0 if self.head is None else self._step_of(self.head)
        return saved + (self._unsaved.count if self._unsaved else 0)

    def applied(self, key: str | None) -> CheckpointRecord | None:
        """Return the checkpoint of an earlier request with this idempotency key, on the path to the head."""
        made = None if key is None else self._applied.get(key)
        return None if made is None else self.registry.tree.get(made)

    def lag(self, checkpoint_id: str | None) -> float | None:
        """Policy lag: optimizer steps between the weights that sampled and those that are trained; None if unknown."""
        if checkpoint_id is None or checkpoint_id == self.head:
            return 0.0 if checkpoint_id == self.head else None
        try:
            return float(self.step - self._step_of(checkpoint_id))
        except NotFoundError:
            return None

    def go_to(self, checkpoint_id: str | None) -> None:
        """Load weights and optimizer state of another checkpoint; unsaved steps are dropped."""
        self._unsaved = None
        self.trainer.zero_grad()
        try:
            self.serving.move(self.model, checkpoint_id)
            self._load(checkpoint_id)
        except BaseException:
            self.broken = True
            raise

    def apply(
        self, body: OptimStepRequest, total: Accumulated, request: str | None = None
    ) -> CheckpointRecord | None:
        """Take one step and return its checkpoint; None if `body` has `save=False`. `request`: digest of a request with a key.
        A failed step restores the head's state, or sets `broken` if that fails as well.
        """
        head, number = self.head, self.step + 1
        # Unsaved weights serve under their own version name too: caches are keyed by it.
        identifier = new_id()
        if body.in_flight:
            with self._changing(head, in_flight=True):
                step = _Step(body, self._optimize(body), request)
                self.serving.policy.checkpoint = identifier
            # Sampling continues while the files are written.
            with self._restoring(head):
                made = self._save(identifier, head, step, total, number) if body.save else None
        else:
            with self._changing(head):
                step = _Step(body, self._optimize(body), request)
                made = self._save(identifier, head, step, total, number) if body.save else None
                self.serving.policy.checkpoint = identifier
        if made is None:
            count = 1 + (self._unsaved.count if self._unsaved else 0)
            self._saved, self._unsaved = head, _Unsaved(count, step)
            if body.recoverable:
                with self._restoring(head):
                    self._write_unsaved(identifier, step, total)
        else:
            self._unsaved = None
        return made

    def forget_unsaved(self) -> None:
        """Delete the steps on disk that no checkpoint holds: the head is moved on purpose."""
        self._on_disk.clear()

    def keep(self, total: Accumulated) -> None:
        """Save unsaved steps, if there are any."""
        if self._unsaved is None:
            return
        unsaved, head, identifier = self._unsaved, self.head, new_id()
        with self._changing(head):
            self._save(identifier, head, unsaved.last, total, self.step)
            self.serving.policy.checkpoint = identifier
        self._unsaved = None

    def save(self, total: Accumulated) -> str:
        """Save unsaved steps, or weights that no checkpoint of this model holds yet; returns the head."""
        if self._unsaved is not None:
            self.keep(total)
        elif self.head is None or self.registry.tree.get(self.head).model_id != self.model.id:
            head, identifier = self.head, new_id()
            with self._changing(head):
                self._save(identifier, head, None, total, self.step)
                self.serving.policy.checkpoint = identifier
        assert self.head is not None
        return self.head

    @property
    def measured(self) -> dict[str, float]:
        """Metrics of the last step, until it has a checkpoint."""
        return {} if self._unsaved is None else self._unsaved.last.measured

    def load_reference(self) -> None:
        """Load the reference policy for KL (the model's base weights), unless it is the adapter's base."""
        self.trainer.take_reference(self._base_policy)

    def _base_policy(self) -> Decoder:
        weights = self.registry.weights(self.model, self.model.config.origin_checkpoint)
        decoder = self.serving.policy.decoder
        with budget_of(decoder.device).room_for(weight_bytes(weights.folder, decoder.dtype)):
            return load_decoder(weights.folder, dtype=decoder.dtype, device=decoder.device)

    def _optimize(self, body: OptimStepRequest) -> dict[str, float]:
        measured = self.trainer.optim_step(
            body.learning_rate,
            body.beta1,
            body.beta2,
            body.eps,
            body.weight_decay,
            body.max_grad_norm,
            body.optimizer,
        )
        self.serving.stepped(measured)
        return measured

    @contextmanager
    def _changing(self, head: str | None, *, in_flight: bool = False) -> Iterator[None]:
        """Pause the sampler; an exception inside the block restores the head's weights."""
        with (
            self.serving.lock,
            self.serving.policy.exclusive(in_flight=in_flight),
            self._restoring(head),
        ):
            yield

    @contextmanager
    def _restoring(self, head: str | None) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # The weights have changed and have no checkpoint: restore the head.
            self.go_to(head)
            raise

    def _save(
        self,
        identifier: str,
        head: str | None,
        step: _Step | None,
        total: Accumulated,
        number: int,
    ) -> CheckpointRecord:
        """Write a checkpoint with parent `head`, then record it and move the head. `step` None: without one."""
        node = self._node(identifier, head, step, total, number)
        assert node.folder is not None
        write_checkpoint(node.folder, _manifest(node), partial(self._write, node.name))
        self.registry.tree.append(node, expected_head=head)
        self._on_disk.clear()
        self._steps[identifier] = number
        if (key := node.metrics.get("idempotency_key")) is not None:
            self._applied[key] = identifier
        return node

    def _write_unsaved(self, identifier: str, step: _Step, total: Accumulated) -> None:
        """Write the weights and the state of the steps since the last checkpoint, for a session after a crash."""
        node = self._node(identifier, self._saved, step, total, self.step)
        self._on_disk.write(node, _manifest(node), partial(self._write, node.name))

    def _node(
        self,
        identifier: str,
        head: str | None,
        step: _Step | None,
        total: Accumulated,
        number: int,
    ) -> CheckpointRecord:
        """Return the node of a checkpoint with parent `head`, at its place in the tree."""
        body, measured = (step.body, step.measured) if step else (None, {})
        measured_reward = body.measured_reward if body else None
        key = body.idempotency_key if body else None
        reward = total.mean_reward if measured_reward is None else measured_reward
        if total.loss_fn == "cross_entropy" and measured_reward is None:
            reward = (
                None  # Rewards of its examples, such as a teacher's: no measure of this policy.
            )
        rewards = {"reward:mean": reward, "trained_reward:mean": total.trained_reward}
        metrics: dict[str, Any] = {
            name: value
            for name, value in {**merge(total.metrics), **measured, **rewards}.items()
            if value is not None and math.isfinite(value)
        }
        if key is not None:
            metrics["idempotency_key"] = key
            if step and step.request is not None:
                metrics[REQUEST] = step.request
        name = node_name(number, identifier)
        return CheckpointRecord(
            id=identifier,
            model_id=self.model.id,
            parent_id=head,
            step=number,
            name=name,
            folder=self.registry.tree.place(self.model.id) / name,
            created_at=datetime.now(UTC),
            mean_reward=reward,
            learning_rate=body.learning_rate if body else None,
            loss_fn=total.loss_fn,
            num_traces=total.traces,
            num_datums=total.datums,
            num_tokens=total.tokens,
            metrics=metrics,
            system_prompt=self.registry.tree.system_prompt(head),
        )

    def _write(self, name: str, folder: Path) -> None:
        """Write the files for the next step and for the sampler of a checkpoint into a new folder."""
        base = self.model.folder
        if self.trainer.save_policy(folder / SAMPLER, base=base, name=name):
            place_companions(base, folder / SAMPLER, link_or_copy)
        state = {name: tensor.contiguous() for name, tensor in self.trainer.state_dict().items()}
        write_tensors(state, folder / STATE)

    def _load(self, checkpoint_id: str | None) -> None:
        """Load the optimizer state of a checkpoint; the weights are loaded already."""
        self._applied = self._keys_until(checkpoint_id)
        if checkpoint_id is None:
            self.trainer.reset()
            # A checkpoint has a random state; the base gets a fixed one.
            torch.manual_seed(0)
            return
        node = self.registry.tree.get(checkpoint_id)
        if node.model_id != self.model.id:
            # A fork is a new experiment: momentum of its base's gradients would bias its first steps.
            self.trainer.reset()
            return
        folder = self.registry.tree.present(node, self.model)
        self.registry.tree.verify(node, self.model, only=STATE)
        if STATE not in read_manifest(folder).files:
            self.trainer.reset()  # Deleted to save space.
            return
        try:
            self.trainer.load_state_dict(load_file(folder / STATE))
        except HudError:
            raise
        # safetensors and torch raise many exception types; each means that the file cannot be read.
        except Exception as error:
            raise StoreError(
                f"{folder / STATE} cannot be loaded ({error}). {self.registry.tree.cure(node, self.model)}"
            ) from error

    def _keys_until(self, checkpoint_id: str | None) -> dict[str, str]:
        """Return the checkpoints on the path to a checkpoint, by the idempotency keys of their requests."""
        nodes_by_id = {node.id: node for node in self.registry.tree.nodes(self.model)}
        keys: dict[str, str] = {}
        place = checkpoint_id
        while place is not None and place in nodes_by_id:
            key = nodes_by_id[place].metrics.get("idempotency_key")
            if key is not None:
                keys.setdefault(key, place)
            place = nodes_by_id[place].parent_id
        return keys

    def _step_of(self, checkpoint_id: str) -> int:
        if checkpoint_id not in self._steps:
            self._steps[checkpoint_id] = self.registry.tree.get(checkpoint_id).step
        return self._steps[checkpoint_id]


def _manifest(node: CheckpointRecord) -> Manifest:
    return Manifest(
        id=node.id,
        model_id=node.model_id,
        parent_id=node.parent_id,
        step=node.step,
        idempotency_key=node.metrics.get("idempotency_key"),
        metrics={
            name: value
            for name, value in node.metrics.items()
            if name not in ("idempotency_key", REQUEST)
        },
    )


def step_result(trained: TrainedModel, slug: str, node: CheckpointRecord | None) -> OptimStepResult:
    """Return the response to an optimizer step that saved `node`; paths are empty if it is None."""
    if node is None:
        step, identifier, sampler, state = trained.step, trained.head or "", "", ""
    else:
        folder = node.folder or Path()
        step, identifier = node.step, node.id
        sampler, state = str(folder / SAMPLER), str(folder / STATE)
    return OptimStepResult(
        step=step, checkpoint_id=identifier, sampler_path=sampler, state_path=state, model=slug
    )
