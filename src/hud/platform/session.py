"""One training session: batches in, checkpoints out, over the weights that serve.

Every public method is asked from the event loop and does its work on the session's own thread.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors.torch import load_file, save_file

from hud.engine.folder import load_decoder
from hud.engine.trainer import Trainer
from hud.errors import ConflictError, HudError, NotFoundError, StoreError
from hud.platform.accumulation import Accumulated, as_tensors, resolve_input
from hud.platform.checkpoints import (
    SAMPLER,
    STATE,
    Manifest,
    write_checkpoint,
)
from hud.platform.policies import lora_config, write_policy
from hud.platform.records import CheckpointRecord, ModelRecord
from hud.platform.rendering import render_conversation
from hud.platform.tree import node_name
from hud.trace import new_id
from hud.train.batches import Batch, make_batch
from hud.train.datums import Datum
from hud.train.loss_config import parse_loss
from hud.train.metrics import merge
from hud.train.types import (
    BackwardRequest,
    BuiltinLoss,
    ForwardBackwardRequest,
    ForwardBackwardResult,
    ForwardRequest,
    ForwardResult,
    OptimStepRequest,
    OptimStepResult,
    TrajectoryPayload,
)

if TYPE_CHECKING:
    from hud.platform.platform import Platform
    from hud.platform.serving.training import Conversation

T = TypeVar("T")

MOST_FORWARDS = 8
"""Forward contexts that wait for their backward; the oldest makes room."""
MOST_ANSWERS = 64
"""Answers kept for repeated requests."""


class Session:
    """The training state of one model in this process."""

    def __init__(self, platform: Platform, model: ModelRecord, thread: ThreadPoolExecutor) -> None:
        """Take the lease and load the head; on the session's thread."""
        self.registry, self.policies, self.store = (
            platform.registry,
            platform.policies,
            platform.store,
        )
        self.slug, self.model_id = model.slug, model.id
        self.broken = False
        self.owner: str | None = None
        """Who has the session to himself, as long as he is not done: a training run of this process."""
        self._thread = thread
        self._forwards: OrderedDict[str, tuple[list[Datum], int]] = OrderedDict()
        self._answers: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._steps: dict[str, int] = {}
        self._accumulated = Accumulated()
        self._unsaved = 0  # Steps since the last checkpoint,
        self._last_saved: str | None = None  # which is this one while there are any.
        self.registry.leases.acquire(model.id, model.slug)
        try:
            # Read under the lease: whoever held it before may have moved the head.
            self.model = self.registry.model(model.id)
            self.registry.tree.clean(self.model)
            self.serving = self.policies.serving(self.model)
            lora = lora_config(self.model.config)
            self.trainer = Trainer(self.serving.policy.decoder, lora=lora)
            self._load_state(self.model.head_checkpoint_id)
        except BaseException:
            self.registry.leases.release(model.id)
            raise

    # -- asked from the event loop --------------------------------------------------------------------

    async def forward_backward(self, body: ForwardBackwardRequest) -> ForwardBackwardResult:
        """Accumulate the gradient of a loss over a batch."""
        return await self._once("pass", body.idempotency_key, lambda: self._forward_backward(body))

    async def forward(self, body: ForwardRequest) -> ForwardResult:
        """Compute logprobs, and keep the batch until its backward."""
        return await self._do(lambda: self._forward(body))

    async def backward(self, body: BackwardRequest) -> ForwardBackwardResult:
        """Accumulate the gradient of a caller's own loss."""
        return await self._once("pass", body.idempotency_key, lambda: self._backward(body))

    async def optim_step(self, body: OptimStepRequest) -> OptimStepResult:
        """Update, save, append to the tree, and move the head."""
        return await self._once("step", body.idempotency_key, lambda: self._optim_step(body))

    async def refresh(self, owner: str | None) -> None:
        """Renew the lease and empty the sampler's cache; an `owner` keeps other owners out until `close`.

        Keys and values that were computed in another batch differ in their last bits; with none of them left, what is
        sampled next depends on the weights and the requests alone, as after a restart.
        """

        def work() -> None:
            if owner is not None:
                if self.owner not in (None, owner):
                    raise ConflictError(
                        f"Model {self.slug!r} is being trained by another run of this process. Wait for it to end, or train "
                        f"a fork: hud models fork {self.slug} --name {self.slug}-2"
                    )
                self.owner = owner
            self.registry.leases.acquire(self.model_id, self.slug)
            with self.serving.policy.exclusive():
                pass

        await self._do(work)

    async def render(self, conversations: Sequence[Conversation]) -> list[list[dict[str, Any]]]:
        """Return conversations as samples of this model's own tokens."""
        form = self.serving.policy.chat

        def work() -> list[list[dict[str, Any]]]:
            return [render_conversation(form, one.messages, one.tools) for one in conversations]

        return await self._do(work)

    @property
    def head(self) -> str | None:
        """The checkpoint that the next step begins from."""
        return self._last_saved if self._unsaved else self.serving.policy.checkpoint

    @property
    def step(self) -> int:
        """Optimizer steps behind the head."""
        return 0 if self.head is None else self._step_of(self.head)

    # -- on the session's thread ----------------------------------------------------------------------

    def continue_from(self, checkpoint_id: str | None) -> None:
        """Go on from another checkpoint; what was accumulated is dropped."""
        self._forget()
        self.model = self.registry.model(self.model_id)
        self.policies.move(self.serving, self.model, checkpoint_id)
        self._load_state(checkpoint_id)

    def close(self) -> None:
        """Drop what was accumulated and give the lease back."""
        if self._unsaved:
            self._roll_back(self.head)
        self._forget()
        self.broken = True
        self.registry.leases.release(self.model_id)

    def _forward_backward(self, body: ForwardBackwardRequest) -> ForwardBackwardResult:
        loss = parse_loss(body.loss_fn, body.loss_fn_config)
        self.registry.leases.acquire(self.model_id, self.slug)
        supervised = body.loss_fn == BuiltinLoss.CROSS_ENTROPY
        payloads = [
            resolve_input(self.store, self.model.team_id, one, supervised=supervised)
            for one in body.inputs
        ]
        batch = self._batch(payloads, body, loss_fn=body.loss_fn)
        metrics = dict(batch.metrics)
        if loss.needs_reference:
            self._load_reference()
        if batch.datums:
            metrics |= self.trainer.forward_backward(
                batch.datums, body.loss_fn, body.loss_fn_config, num_substeps=body.num_substeps
            )
        else:
            metrics |= {"loss:sum": 0.0}
        self._accumulated.add(metrics, batch.datums, batch.num_traces, body.loss_fn)
        self._accumulated.add_rewards([one.reward for one in payloads if one.failure is None])
        return ForwardBackwardResult(metrics=metrics, num_datums=len(batch.datums))

    def _forward(self, body: ForwardRequest) -> ForwardResult:
        self.registry.leases.acquire(self.model_id, self.slug)
        payloads = [resolve_input(self.store, self.model.team_id, one) for one in body.inputs]
        batch = self._batch(payloads, body, keep_all=True)
        logprobs = self.trainer.forward(batch.datums)
        forward_id = new_id()
        while len(self._forwards) >= MOST_FORWARDS:
            self._forwards.popitem(last=False)
        self._forwards[forward_id] = (batch.datums, batch.num_traces)
        data = [as_tensors(*pair) for pair in zip(batch.datums, logprobs, strict=True)]
        return ForwardResult(forward_id=forward_id, data=data)

    def _backward(self, body: BackwardRequest) -> ForwardBackwardResult:
        found = self._forwards.get(body.forward_id)
        if found is None:
            raise NotFoundError(
                f"There is no forward pass {body.forward_id!r} of {self.slug!r} any more: it was used, the weights have "
                f"changed since, or {MOST_FORWARDS} later ones took its place. Call forward again."
            )
        datums, traces = found
        metrics = {**self.trainer.backward(datums, body.weights), **body.metrics}
        del self._forwards[body.forward_id]
        self._accumulated.add(metrics, datums, traces, "custom")
        self._accumulated.add_rewards([datum.reward for datum in datums])
        return ForwardBackwardResult(metrics=metrics, num_datums=len(datums))

    def _optim_step(self, body: OptimStepRequest) -> OptimStepResult:
        head = self.head
        if body.idempotency_key is not None and head is not None:
            node = self.registry.tree.get(head)
            if node.metrics.get("idempotency_key") == body.idempotency_key:
                return self._result(node)  # Saved by a process whose answer was lost.
        if not self.trainer.pending:
            self.trainer.zero_grad()
            raise ConflictError(
                f"Nothing was accumulated for {self.slug!r} since its last step, so there is nothing to apply. Call "
                "forward_backward first, with a batch that has some spread of rewards in a group."
            )
        self.registry.leases.acquire(self.model_id, self.slug)
        with self.serving.lock, self.serving.policy.exclusive():
            try:
                measured = self.trainer.optim_step(
                    body.learning_rate,
                    body.beta1,
                    body.beta2,
                    body.eps,
                    body.weight_decay,
                    body.max_grad_norm,
                )
                made = self._save(body, measured) if body.save else None
            except BaseException:
                # The weights have changed and nothing stands for them: back to what does.
                self._roll_back(head)
                raise
            # Weights that are not saved serve under a name of their own: caches must not mix them up.
            self.serving.policy.checkpoint = new_id() if made is None else made.id
        if made is None:
            self._last_saved, self._unsaved = head, self._unsaved + 1
            self._forwards.clear()
            return self._not_saved(head)
        self._forget(answers=False)
        return self._result(made)

    def _save(self, body: OptimStepRequest, measured: dict[str, float]) -> CheckpointRecord:
        """Write the checkpoint, then record it and move the head."""
        total, head = self._accumulated, self.head
        identifier, step = new_id(), self.step + self._unsaved + 1
        metrics: dict[str, Any] = {
            name: value
            for name, value in {**merge(total.metrics), **measured}.items()
            if math.isfinite(value)
        }
        place = self.registry.tree.place(self.model_id) / node_name(step, identifier)
        manifest = Manifest(
            id=identifier,
            model_id=self.model_id,
            parent_id=head,
            step=step,
            idempotency_key=body.idempotency_key,
            metrics=metrics,
        )
        write_checkpoint(place, manifest, self._write)
        if body.idempotency_key is not None:
            metrics["idempotency_key"] = body.idempotency_key
        node = CheckpointRecord(
            id=identifier,
            model_id=self.model_id,
            parent_id=head,
            step=step,
            name=node_name(step, identifier),
            folder=place,
            created_at=datetime.now(UTC),
            mean_reward=total.mean_reward,
            learning_rate=body.learning_rate,
            loss_fn=total.loss_fn,
            num_traces=total.traces,
            num_datums=total.datums,
            num_tokens=total.tokens,
            metrics=metrics,
        )
        self.registry.tree.append(node, expected_head=head)
        self._steps[identifier] = step
        return node

    def _write(self, folder: Path) -> None:
        """Write what the next step and the sampler need into a fresh folder."""
        write_policy(self.trainer, self.model.folder, folder / SAMPLER)
        state = {name: tensor.contiguous() for name, tensor in self.trainer.state_dict().items()}
        save_file(state, folder / STATE)

    def _load_state(self, checkpoint_id: str | None) -> None:
        """Put the trainer where a checkpoint left it; the weights are there already."""
        if checkpoint_id is None:
            self.trainer.reset()
            # As a checkpoint would bring its random state, so does the beginning: the same one every time.
            torch.manual_seed(0)
            return
        node = self.registry.tree.get(checkpoint_id)
        if node.model_id != self.model_id:
            # A fork is another experiment: momentum of its base's gradients would push it where its base was going.
            self.trainer.reset()
            return
        folder = self.registry.tree.present(node, self.model)
        self.registry.tree.verify(node, self.model, only=STATE)
        try:
            self.trainer.load_state_dict(load_file(folder / STATE))
        except HudError:
            raise
        except (
            Exception
        ) as error:  # safetensors and torch raise many kinds; each means that it cannot be read.
            raise StoreError(
                f"{folder / STATE} cannot be loaded ({error}). {self.registry.tree.cure(node, self.model)}"
            ) from error

    def _roll_back(self, head: str | None) -> None:
        """Return weights and optimizer to the head's; a session that cannot is not used again."""
        self._forget()
        try:
            self.policies.move(self.serving, self.model, head)
            self._load_state(head)
        except BaseException:
            self.broken = True
            raise

    def _batch(
        self,
        payloads: list[TrajectoryPayload],
        body: ForwardBackwardRequest | ForwardRequest,
        *,
        loss_fn: str = BuiltinLoss.IMPORTANCE_SAMPLING,
        keep_all: bool = False,
    ) -> Batch:
        return make_batch(
            payloads,
            loss_fn=loss_fn,
            group_ids=body.group_ids,
            group_size=body.group_size,
            options=body.advantages,
            reward_scale=body.reward_scale,
            vocab_size=self.serving.policy.decoder.config.vocab_size,
            lag=self._lag,
            keep_all=keep_all,
        )

    def _lag(self, checkpoint_id: str | None) -> float | None:
        """Steps between the weights that sampled and those that are trained."""
        if checkpoint_id is None or checkpoint_id == self.head:
            return 0.0 if checkpoint_id == self.head else None
        try:
            return float(self.step - self._step_of(checkpoint_id))
        except NotFoundError:
            return None

    def _step_of(self, checkpoint_id: str) -> int:
        if checkpoint_id not in self._steps:
            self._steps[checkpoint_id] = self.registry.tree.get(checkpoint_id).step
        return self._steps[checkpoint_id]

    def _load_reference(self) -> None:
        """Load what KL is taken to, where an adapter's base is not it: the weights that the model began with."""
        if self.trainer.lora is not None or self.trainer.reference is not None:
            return
        weights = self.registry.weights(self.model, self.model.config.origin_checkpoint)
        decoder = self.serving.policy.decoder
        reference = load_decoder(weights.folder, dtype=decoder.dtype, device=decoder.device)
        self.trainer.reference = reference.requires_grad_(False)

    def _result(self, node: CheckpointRecord) -> OptimStepResult:
        folder = node.folder or Path()
        return OptimStepResult(
            step=node.step,
            checkpoint_id=node.id,
            sampler_path=str(folder / SAMPLER),
            state_path=str(folder / STATE),
            model=self.slug,
        )

    def _not_saved(self, head: str | None) -> OptimStepResult:
        step = self.step + self._unsaved
        return OptimStepResult(
            step=step, checkpoint_id=head or "", sampler_path="", state_path="", model=self.slug
        )

    def _forget(self, *, answers: bool = True) -> None:
        self.trainer.zero_grad()
        self._forwards.clear()
        self._accumulated = Accumulated()
        self._unsaved = 0
        if answers:
            self._answers.clear()

    async def _once(self, kind: str, key: str | None, work: Callable[[], T]) -> T:
        """Do `work`, or give the answer of the request of this kind with this key again."""
        if key is None:
            return await self._do(work)
        place = (kind, key)

        def keyed() -> T:
            if place in self._answers:
                known: T = self._answers[place]
                return known
            answer = self._answers[place] = work()
            while len(self._answers) > MOST_ANSWERS:
                self._answers.popitem(last=False)
            return answer

        return await self._do(keyed)

    async def _do(self, work: Callable[[], T]) -> T:
        def checked() -> T:
            if self.broken:
                raise ConflictError(
                    f"The training session of {self.slug!r} has ended; send the request again."
                )
            return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, checked)
