"""One training session: batches in, checkpoints out, over the weights that serve.

Every public method is asked from the event loop and does its work on the session's own thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hud.errors import ConflictError, HudError, NotFoundError
from hud.platform.accumulation import Accumulated, as_tensors, computed_runs, resolve_input
from hud.platform.checkpoints import SAMPLER, STATE
from hud.platform.records import BASE, CheckpointRecord, ModelRecord
from hud.platform.rendering import render_conversation
from hud.platform.store.trainer_logprobs import PassWeights, record_pass
from hud.platform.trained import TrainedModel
from hud.trace import new_id
from hud.train.batches import Batch, make_batch
from hud.train.datums import Datum, Floats
from hud.train.loss_config import parse_loss
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
_log = logging.getLogger(__name__)

MOST_FORWARDS = 8
"""Forward contexts that wait for their backward; the oldest makes room."""
MOST_ANSWERS = 64
"""Answers kept for repeated requests."""


class Session:
    """The training state of one model in this process."""

    def __init__(self, platform: Platform, model: ModelRecord, thread: ThreadPoolExecutor) -> None:
        """Take the lease and load the head; on the session's thread."""
        self.registry, self.store = platform.registry, platform.store
        self.slug, self.model_id = model.slug, model.id
        self.closed = False
        self.owner: str | None = None
        """Who has the session to himself, as long as he is not done: a training run of this process."""
        self._thread = thread
        self._forwards: OrderedDict[str, tuple[list[Datum], int]] = OrderedDict()
        self._answers: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._accumulated = Accumulated()
        self._noted: str | None = None
        """The head for which the store knows that there is a gradient."""
        before = self.registry.leases.acquire(model.id, model.slug)
        try:
            # Read under the lease: whoever held it before may have moved the head.
            self.model = self.registry.model(model.id)
            head = self.model.head_checkpoint_id
            self._lost = before is not None and before.accumulated_on == (head or BASE)
            """True while nobody was told that a process died with a gradient for this head."""
            self.trained = TrainedModel(self.registry, platform.policies, self.model)
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
            self._lost = False  # Whoever begins sends whole batches.
            self.registry.leases.acquire(self.model_id, self.slug)
            with self.trained.serving.policy.exclusive():
                pass

        await self._do(work)

    async def render(self, conversations: Sequence[Conversation]) -> list[list[dict[str, Any]]]:
        """Return conversations as samples of this model's own tokens."""
        form = self.trained.serving.policy.chat

        def work() -> list[list[dict[str, Any]]]:
            return [render_conversation(form, one.messages, one.tools) for one in conversations]

        return await self._do(work)

    @property
    def head(self) -> str | None:
        """The checkpoint that the next step begins from."""
        return self.trained.head

    @property
    def step(self) -> int:
        """Optimizer steps behind the weights."""
        return self.trained.step

    @property
    def broken(self) -> bool:
        """True for a session that is of no more use."""
        return self.closed or self.trained.broken

    # -- on the session's thread ----------------------------------------------------------------------

    def continue_from(self, checkpoint_id: str | None) -> None:
        """Go on from another checkpoint; what was accumulated is dropped."""
        self._forget()
        self._lost = False
        self.trained.go_to(checkpoint_id)

    def close(self) -> None:
        """Drop what was accumulated and give the lease back."""
        if self.trained.head != self.trained.serving.policy.checkpoint:
            self.trained.go_to(self.head)
        self._forget()
        self.closed = True
        self.registry.leases.release(self.model_id)

    def suspend(self) -> None:
        """Save what can be saved, for whoever goes on with the model after this process."""
        self.trained.keep(self._accumulated)
        self.closed = True
        if self.trained.trainer.pending and self._noted is not None:
            # The lease stays, as if we had died with it: it tells our successor that a gradient was lost.
            self.registry.leases.expire(self.model_id)
        else:
            self.registry.leases.release(self.model_id)

    def _forward_backward(self, body: ForwardBackwardRequest) -> ForwardBackwardResult:
        loss = parse_loss(body.loss_fn, body.loss_fn_config)
        self._begin()
        supervised = body.loss_fn == BuiltinLoss.CROSS_ENTROPY
        payloads = [
            resolve_input(self.store, self.model.team_id, one, supervised=supervised)
            for one in body.inputs
        ]
        batch = self._batch(payloads, body, loss_fn=body.loss_fn)
        metrics = dict(batch.metrics)
        if loss.needs_reference:
            self.trained.load_reference()
        if batch.datums:
            metrics |= self.trained.trainer.forward_backward(
                batch.datums, body.loss_fn, body.loss_fn_config, num_substeps=body.num_substeps
            )
            self._record_later(payloads, batch.datums, self.trained.trainer.last_logprobs)
        else:
            metrics |= {"loss:sum": 0.0}
        self._accumulated.add(metrics, batch.datums, batch.num_traces, body.loss_fn)
        self._accumulated.add_rewards([one.reward for one in payloads if one.failure is None])
        self._note()
        return ForwardBackwardResult(metrics=metrics, num_datums=len(batch.datums))

    def _forward(self, body: ForwardRequest) -> ForwardResult:
        self._begin()
        payloads = [resolve_input(self.store, self.model.team_id, one) for one in body.inputs]
        batch = self._batch(payloads, body, keep_all=True)
        logprobs = self.trained.trainer.forward(batch.datums)
        self._record_later(payloads, batch.datums, logprobs)
        forward_id = new_id()
        while len(self._forwards) >= MOST_FORWARDS:
            self._forwards.popitem(last=False)
        self._forwards[forward_id] = (batch.datums, batch.num_traces)
        data = [as_tensors(*pair) for pair in zip(batch.datums, logprobs, strict=True)]
        return ForwardResult(forward_id=forward_id, data=data)

    def _backward(self, body: BackwardRequest) -> ForwardBackwardResult:
        self._tell_lost()
        found = self._forwards.get(body.forward_id)
        if found is None:
            raise NotFoundError(
                f"There is no forward pass {body.forward_id!r} of {self.slug!r} any more: it was used, the weights have "
                f"changed since, or {MOST_FORWARDS} later ones took its place. Call forward again."
            )
        datums, traces = found
        metrics = {**self.trained.trainer.backward(datums, body.weights), **body.metrics}
        del self._forwards[body.forward_id]
        self._accumulated.add(metrics, datums, traces, "custom")
        self._accumulated.add_rewards([datum.reward for datum in datums])
        self._note()
        return ForwardBackwardResult(metrics=metrics, num_datums=len(datums))

    def _optim_step(self, body: OptimStepRequest) -> OptimStepResult:
        known = self.trained.applied(body.idempotency_key)
        if known is not None:
            return self._result(known)  # Saved by a process whose answer was lost.
        self._tell_lost()
        if not self.trained.trainer.pending:
            self.trained.trainer.zero_grad()
            raise ConflictError(
                f"Nothing was accumulated for {self.slug!r} since its last step, so there is nothing to apply. Call "
                "forward_backward first, with a batch that has some spread of rewards in a group."
            )
        self.registry.leases.acquire(self.model_id, self.slug)
        head = self.head
        try:
            made = self.trained.apply(body, self._accumulated)
        except BaseException:
            self._forget()
            raise
        if made is None:
            self._forwards.clear()
            return OptimStepResult(
                step=self.step,
                checkpoint_id=head or "",
                sampler_path="",
                state_path="",
                model=self.slug,
            )
        self._forget(answers=False)
        return self._result(made)

    def _record_later(
        self,
        payloads: Sequence[TrajectoryPayload],
        datums: Sequence[Datum],
        logprobs: Sequence[Floats],
    ) -> None:
        """Have what was computed of recorded runs written when the answer is on its way; nobody waits for it."""
        if all(one.trace_id is None for one in payloads):
            return
        weights = PassWeights(self.model_id, self.step, self.trained.serving.policy.checkpoint)

        def work() -> None:
            try:
                computed = computed_runs(payloads, datums, logprobs)
                record_pass(self.store, self.model.team_id, weights, computed)
            except HudError as error:
                # It is for looking at; training goes on without.
                _log.warning("The trainer's logprobs of a pass were not recorded: %s", error)

        self._thread.submit(work)

    def _begin(self) -> None:
        """Begin a pass: the lease is renewed, and what was lost before is told."""
        self.registry.leases.acquire(self.model_id, self.slug)
        self._tell_lost()

    def _tell_lost(self) -> None:
        """Refuse, once, to go on where a process died with a gradient: half of a batch must not be applied as a whole."""
        if self._lost:
            self._lost = False
            raise ConflictError(
                f"The process that trained {self.slug!r} died with a gradient that was not applied yet, and it is gone. "
                f"The model stands at step {self.step}: send the whole batch again, then optim_step."
            )

    def _note(self) -> None:
        """Write down that there is a gradient, so that it is missed if this process dies."""
        place = self.head or BASE
        if self._noted != place and self.trained.trainer.pending:
            self.registry.leases.note_accumulated(self.model_id, place)
            self._noted = place

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
            vocab_size=self.trained.serving.policy.decoder.config.vocab_size,
            lag=self.trained.lag,
            keep_all=keep_all,
        )

    def _result(self, node: CheckpointRecord) -> OptimStepResult:
        folder = node.folder or Path()
        return OptimStepResult(
            step=node.step,
            checkpoint_id=node.id,
            sampler_path=str(folder / SAMPLER),
            state_path=str(folder / STATE),
            model=self.slug,
        )

    def _forget(self, *, answers: bool = True) -> None:
        self.trained.trainer.zero_grad()
        self._forwards.clear()
        self._accumulated = Accumulated()
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
