"""A training session: batches in, checkpoints out, over the weights that serve.
Public methods are called on the event loop and work on the session's own thread.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from hud.errors import ConflictError, HudError, NotFoundError, UsageError
from hud.learning.datum_calls import (
    DatumPassRequest,
    DatumPassResult,
    SavedState,
    StepMetrics,
    StepRequest,
)
from hud.learning.datums import Batch, Datum, Floats, make_batch
from hud.learning.failed_runs import measures_policy
from hud.learning.losses.config import parse_loss
from hud.learning.training_calls import OpenRequest, RenderRequest, RenderResult
from hud.learning.wire_types import (
    MOST_DATUMS,
    BackwardRequest,
    BuiltinLoss,
    DiscardedGradient,
    ForwardBackwardRequest,
    ForwardBackwardResult,
    ForwardRequest,
    ForwardResult,
    LossRequest,
    OpenedSession,
    OptimStepRequest,
    OptimStepResult,
    TrajectoryPayload,
)
from hud.trace import new_id, with_system_prompt
from hud_platform.leases.session_lease import SessionLease
from hud_platform.models.checkpoint_tree import REQUEST
from hud_platform.models.records import ModelRecord
from hud_platform.store.trained_prompts import record_prompts
from hud_platform.store.trainer_logprobs import PassWeights
from hud_platform.training import datum_session, teacher_hints
from hud_platform.training.gradient_accumulation import (
    Accumulated,
    as_tensors,
    record_computed,
    resolve_inputs,
)
from hud_platform.training.idempotent_responses import (
    IdempotentResponses,
    check_repeated,
    request_digest,
)
from hud_platform.training.pending_gradients import PendingGradient
from hud_platform.training.served_teacher import ServedTeacher
from hud_platform.training.supervised_rendering import render_conversation
from hud_platform.training.teachers import Teacher
from hud_platform.training.trained_model import TrainedModel, step_result
from hud_platform.training.trained_texts import digests_without_task
from hud_platform.training.unsaved_steps import UnsavedSteps
from hud_platform.training.verdicts import check_rates, verdicts

if TYPE_CHECKING:
    from hud.client.contributor import Contributor
    from hud_platform.models.loaded_policies import Policies
    from hud_platform.models.registry import Registry

T = TypeVar("T")

MOST_FORWARDS = 8
"""Maximum number of forward contexts that wait for their backward pass; the oldest one is evicted."""


class Session:
    """Training state of one model in this process."""

    def __init__(
        self,
        registry: Registry,
        policies: Policies,
        model: ModelRecord,
        thread: ThreadPoolExecutor,
    ) -> None:
        """Take the lease and load the head. Call on the session's thread."""
        self.registry, self.store = registry, registry.store
        self.slug, self.model_id = model.slug, model.id
        self.closed = False
        self.lease = SessionLease(model.slug)
        self._thread = thread
        self._forwards: OrderedDict[str, tuple[list[Datum], int, set[int]]] = OrderedDict()
        """Datums of each forward pass, the number of their runs, and the digests of their texts."""
        self._responses = IdempotentResponses()
        self._teachers: dict[tuple[str, str | None], Teacher | ServedTeacher] = {}
        lost = self.registry.leases.acquire(model.id, model.slug)
        try:
            # Under the lease: its previous holder may have left steps without a checkpoint, or moved the head.
            UnsavedSteps(self.registry.tree, model.id).recover(self.registry.model(model.id))
            self.model = self.registry.model(model.id)
            self.trained = TrainedModel(registry, policies, self.model)
            self.pending = PendingGradient(self.trained, self.registry.leases, model.id, lost)
        except BaseException:
            self.registry.leases.release(model.id, lost)
            raise

    async def forward_backward(
        self, body: ForwardBackwardRequest, client: Contributor
    ) -> ForwardBackwardResult:
        """Accumulate the gradient of a loss over a batch."""
        return await self._pass(body, client, lambda: self._forward_backward(body, client))

    async def forward(self, body: ForwardRequest, client: Contributor) -> ForwardResult:
        """Compute logprobs, and keep the batch until its backward pass."""
        return await self.run(lambda: self._forward(body, client))

    async def loss(self, body: LossRequest, client: Contributor) -> ForwardBackwardResult:
        """Measure `cross_entropy` over a batch; the accumulated gradient is unchanged."""
        return await self.run(lambda: self._loss(body, client))

    async def backward(self, body: BackwardRequest, client: Contributor) -> ForwardBackwardResult:
        """Accumulate the gradient of a loss that the caller computed."""
        return await self._pass(body, client, lambda: self._backward(body, client))

    async def optim_step(self, body: OptimStepRequest, client: Contributor) -> OptimStepResult:
        """Update the weights, save a checkpoint, append it to the tree, and move the head."""
        return await self.run(lambda: self._step_once(body, client))

    async def datum_pass(self, body: DatumPassRequest, client: Contributor) -> DatumPassResult:
        """Compute the loss of single datums and, unless the request is forward only, accumulate its gradient."""
        return await self.run(lambda: datum_session.datum_pass(self, body, client))

    async def datum_step(self, body: StepRequest, client: Contributor) -> StepMetrics:
        """Update the weights without a checkpoint."""
        return await self.run(lambda: datum_session.datum_step(self, body, client))

    async def save(self) -> SavedState:
        """Save the current weights as a checkpoint, unless the head holds them. Keeps the accumulated gradient."""
        return await self.run(lambda: datum_session.save(self))

    async def reset_optimizer(self) -> None:
        """Start a new optimizer state from the current weights."""
        await self.run(lambda: self.trained.trainer.reset())

    async def discard(self, client: Contributor) -> DiscardedGradient | None:
        """Discard the accumulated gradient of any client; another client than `client` is notified."""

        def work() -> DiscardedGradient | None:
            self._refuse_strangers(client)
            return self.pending.discard(client, f"{client.process} discarded it")

        return await self.run(work)

    async def begin(self, body: OpenRequest, client: Contributor) -> OpenedSession:
        """Renew the lease, drop the accumulated gradient, and empty the sampler's prefix cache.
        With `alone`, other clients can neither accumulate nor step until `close`. Keys and values computed in another
        batch differ in their last bits; with an empty cache, the next samples depend only on the weights and the
        requests, as after a restart. The first call compiles what sampling and training need.
        """

        def work() -> OpenedSession:
            self._refuse_strangers(client)
            if body.teacher is not None:
                self._teacher(body.teacher, "head" if body.pinned else None)
            if body.alone:
                self.lease.take(client)
            self.registry.leases.acquire(self.model_id, self.slug)
            dropped = self.pending.discard(client, f"{client.process} began a training run")
            self.trained.keep(self.pending.total)
            self.pending.stepped(saved=True)
            if body.alone:
                self.trained.serving.warm_up(self.trained.trainer)
            with self.trained.serving.policy.exclusive():
                pass
            head, step = self.trained.head, self.trained.step
            return OpenedSession(model=self.slug, head=head, step=step, discarded=dropped)

        return await self.run(work)

    async def render(self, body: RenderRequest) -> RenderResult:
        """Return conversations as samples in this model's tokens."""
        policy = self.trained.serving.policy
        form, context = policy.chat, policy.decoder.config.max_position_embeddings

        def work() -> RenderResult:
            if body.verdicts:
                check_rates(self.model)
                samples = [
                    verdicts(form, conversation.messages) for conversation in body.conversations
                ]
            else:
                samples = [
                    render_conversation(
                        form,
                        with_system_prompt(conversation.messages, policy.system_prompt),
                        conversation.tools,
                    )
                    for conversation in body.conversations
                ]
            return RenderResult(samples=samples, max_context=context)

        return await self.run(work)

    @property
    def broken(self) -> bool:
        """True if the session cannot be used any more."""
        return self.closed or self.trained.broken

    def continue_from(self, checkpoint_id: str | None, client: Contributor) -> None:
        """Continue from another checkpoint; the accumulated gradient is dropped."""
        self.pending.discard(client, f"the head was moved by {client.process}")
        self._forget_requests()
        self.trained.forget_unsaved()
        self.trained.go_to(checkpoint_id)
        self.pending.moved()

    def close(self) -> None:
        """Drop the accumulated gradient and release the lease."""
        self.pending.discard(self.lease.release(), "the training session was closed")
        if self.trained.head != self.trained.serving.policy.checkpoint:
            self.trained.go_to(self.trained.head)
        self.closed = True
        self.registry.leases.release(self.model_id, self.pending.lost)

    def suspend(self) -> None:
        """Save unsaved steps, for the next process that trains the model."""
        self.trained.keep(self.pending.total)
        self.pending.discard(None, "the process that held it was stopped")
        self.closed = True
        self.registry.leases.release(self.model_id, self.pending.lost)

    def _forward_backward(
        self, body: ForwardBackwardRequest, client: Contributor
    ) -> ForwardBackwardResult:
        loss = parse_loss(body.loss_fn, body.loss_fn_config)
        self.begin_pass(client)
        supervised = body.loss_fn == BuiltinLoss.CROSS_ENTROPY
        payloads = resolve_inputs(
            self.store, self.model.team_id, body.inputs, supervised=supervised
        )
        taught = body.teacher is not None
        batch = self._batch(payloads, body, loss_fn=body.loss_fn, keep_all=taught)
        metrics = dict(batch.metrics)
        if body.teacher is not None:
            if not loss.needs_reference:
                raise UsageError(
                    f"The loss has no KL term, so that the teacher {body.teacher!r} has no effect; set kl_coef or kl_advantage_coef."
                )
            teacher = self._teacher(body.teacher, body.teacher_checkpoint)
            chat, top = self.trained.serving.policy.chat, loss.reference_top
            scored = teacher_hints.score(teacher, batch.datums, top, body.hints, chat)
            batch = replace(batch, datums=scored)
        elif loss.needs_reference:
            self.trained.load_reference()
        with self.accumulating(client) as total:
            if batch.datums:
                metrics |= self.trained.trainer.forward_backward(
                    batch.datums, body.loss_fn, body.loss_fn_config, num_substeps=body.num_substeps
                )
                self._record_later(payloads, batch.datums, self.trained.trainer.last_logprobs)
            else:
                metrics |= {"loss:sum": 0.0}
            total.add(metrics, batch.datums, batch.num_traces, body.loss_fn)
            total.prompts = self._prompts(payloads, batch.datums)
            measured = [payload.reward for payload in payloads if measures_policy(payload.failure)]
            total.add_rewards(measured)
        return ForwardBackwardResult(metrics=metrics, num_datums=len(batch.datums))

    def _loss(self, body: LossRequest, client: Contributor) -> ForwardBackwardResult:
        self.begin_pass(client)
        payloads = resolve_inputs(self.store, self.model.team_id, body.inputs, supervised=True)
        batch = self._batch(payloads, body, loss_fn=BuiltinLoss.CROSS_ENTROPY)
        logprobs = self.trained.trainer.forward(batch.datums)
        losses = [
            -float((datum.weights * row).sum(dtype="float64"))
            for datum, row in zip(batch.datums, logprobs, strict=True)
        ]
        actions = float(sum(datum.actions for datum in batch.datums))
        metrics = {"loss:sum": math.fsum(losses), "action_tokens:sum": actions}
        return ForwardBackwardResult(metrics=metrics, num_datums=len(batch.datums))

    def _forward(self, body: ForwardRequest, client: Contributor) -> ForwardResult:
        self.begin_pass(client)
        payloads = resolve_inputs(self.store, self.model.team_id, body.inputs)
        batch = self._batch(payloads, body, keep_all=True)
        logprobs = self.trained.trainer.forward(batch.datums)
        self._record_later(payloads, batch.datums, logprobs)
        forward_id = new_id()
        while len(self._forwards) >= MOST_FORWARDS:
            self._forwards.popitem(last=False)
        prompts = self._prompts(payloads, batch.datums)
        self._forwards[forward_id] = (batch.datums, batch.num_traces, prompts)
        data = [as_tensors(*pair) for pair in zip(batch.datums, logprobs, strict=True)]
        return ForwardResult(forward_id=forward_id, data=data)

    def _backward(self, body: BackwardRequest, client: Contributor) -> ForwardBackwardResult:
        self.begin_pass(client)
        forward = self._forwards.get(body.forward_id)
        if forward is None:
            raise NotFoundError(
                f"There is no forward pass {body.forward_id!r} of {self.slug!r} any more: it was used, the weights have "
                f"changed since, or {MOST_FORWARDS} later ones replaced it. Call forward again."
            )
        datums, traces, prompts = forward
        with self.accumulating(client) as total:
            metrics = {**self.trained.trainer.backward(datums, body.weights), **body.metrics}
            del self._forwards[body.forward_id]
            total.add(metrics, datums, traces, "custom")
            total.prompts = prompts
            total.add_rewards(list({datum.traj_idx: datum.reward for datum in datums}.values()))
        return ForwardBackwardResult(metrics=metrics, num_datums=len(datums))

    @contextmanager
    def accumulating(self, client: Contributor) -> Iterator[Accumulated]:
        """Assign a pass to this client; a failed pass leaves no partial gradient."""
        self.pending.claim(client)
        accumulated = Accumulated()
        try:
            yield accumulated
        except HudError:
            if not self.trained.trainer.pending:
                self.pending.forget()  # The raised error reports that the gradient was discarded.
            raise
        except BaseException:
            self.pending.discard(None, "a later pass failed in the middle")
            raise
        finally:
            self.lease.renew()  # A long pass may have used up the lease's time.
        self.pending.add(accumulated)
        self.pending.note()

    def _step_once(self, body: OptimStepRequest, client: Contributor) -> OptimStepResult:
        """Take a step, or return the result of an earlier request with this idempotency key."""
        key = body.idempotency_key
        if key is None:
            return self.take_step(body, client)
        digest = request_digest(body, client)
        earlier, taker = self._responses.get(digest, "step", key) or (None, None)
        if earlier is None and (node := self.trained.applied(key)) is not None:
            # Saved by a process whose response was lost.
            check_repeated(key, digest, node.metrics.get(REQUEST))
            earlier = step_result(self.trained, self.slug, node)
        if earlier is not None:
            if taker != client and self.pending.client == client:
                # The client did not receive that response and has sent its batch again.
                self.pending.forget()
            answer: OptimStepResult = earlier
            return answer
        answer = self.take_step(body, client, digest)
        self._responses.add(digest, answer, client, "step", key)
        return answer

    def take_step(
        self, body: OptimStepRequest, client: Contributor, request: str | None = None
    ) -> OptimStepResult:
        """Apply the client's gradient. Raises `ConflictError` if there is none. `request`: digest of a request with a key."""
        self._refuse_strangers(client)
        self.pending.notify(client)
        if self.pending.client not in (None, client):
            raise ConflictError(
                f"This client has accumulated no gradient for {self.slug!r}: the pending one belongs to "
                f"{self.pending.client.process}. Call forward_backward first, which discards that one, or discard it with: "
                f"hud models discard {self.slug}"
            )
        if not self.trained.trainer.pending:
            self.pending.forget()  # Runs without signal must not count in a later step.
            if body.allow_empty:
                return step_result(self.trained, self.slug, None)
            raise ConflictError(
                f"Nothing was accumulated for {self.slug!r} since its last step, so there is nothing to apply. Call "
                "forward_backward first, with a batch in which the rewards of some group differ."
            )
        self.registry.leases.acquire(self.model_id, self.slug)
        # Before the step, so that a crash after it leaves no trained prompt unrecorded.
        record_prompts(self.store, self.model_id, self.pending.prompts)
        try:
            made = self.trained.apply(body, self.pending.total, request)
        except BaseException:
            self._forget_requests()
            self.pending.moved()
            raise
        self.lease.renew()
        self._forwards.clear()
        self.pending.stepped(saved=made is not None)
        return step_result(self.trained, self.slug, made)

    def _record_later(
        self,
        payloads: Sequence[TrajectoryPayload],
        datums: Sequence[Datum],
        logprobs: Sequence[Floats],
    ) -> None:
        """Schedule writing the logprobs of recorded runs on the session's thread, after this pass."""
        if all(payload.trace_id is None for payload in payloads):
            return
        checkpoint = self.trained.serving.policy.checkpoint
        weights = PassWeights(self.model_id, self.trained.step, checkpoint)
        team = self.model.team_id
        self._thread.submit(record_computed, self.store, team, weights, payloads, datums, logprobs)

    def _prompts(self, payloads: Sequence[TrajectoryPayload], datums: Sequence[Datum]) -> set[int]:
        """Return the digests of the texts of datums whose task no recorded run names."""
        tokenizer = self.trained.serving.policy.chat.tokenizer
        return digests_without_task(self.store, self.model.team_id, tokenizer, payloads, datums)

    def begin_pass(self, client: Contributor) -> None:
        """Begin a pass: renew the lease, and notify a client whose gradient was lost."""
        self._refuse_strangers(client)
        self.registry.leases.acquire(self.model_id, self.slug)
        self.pending.notify(client)

    def _refuse_strangers(self, client: Contributor) -> None:
        """Raise `ConflictError` for every client except the run that owns the session, until its heartbeat expires."""
        if self.lease.is_lost_to(client):
            self.pending.discard(None, "its training run ended without closing the session")

    def _batch(
        self,
        payloads: list[TrajectoryPayload],
        body: ForwardBackwardRequest | ForwardRequest | LossRequest,
        *,
        loss_fn: str = BuiltinLoss.IMPORTANCE_SAMPLING,
        keep_all: bool = False,
    ) -> Batch:
        shape = self.trained.serving.policy.decoder.config
        return make_batch(
            payloads,
            loss_fn=loss_fn,
            group_ids=body.group_ids,
            group_size=body.group_size,
            options=body.advantages,
            reward_scale=body.reward_scale,
            vocab_size=shape.vocab_size,
            max_context=shape.max_position_embeddings,
            lag=self.trained.lag,
            keep_all=keep_all,
            max_datums=body.max_datums or MOST_DATUMS,
        )

    def _teacher(self, name: str, checkpoint: str | None) -> Teacher | ServedTeacher:
        """Return a teacher, checked once. Raises `UsageError` for one that the student cannot have."""
        key = (name, checkpoint)
        if key not in self._teachers:
            self._teachers[key] = Teacher.named(
                self.registry, self.trained.policies, name, checkpoint, self.model
            )
        return self._teachers[key]

    def _forget_requests(self) -> None:
        """Drop forward contexts and cached responses, which refer to earlier weights."""
        self._forwards.clear()
        self._responses.clear()

    async def _pass(
        self,
        body: ForwardBackwardRequest | BackwardRequest,
        client: Contributor,
        work: Callable[[], ForwardBackwardResult],
    ) -> ForwardBackwardResult:
        """Run `work`, or return the cached response to this request while the client's gradient is pending."""

        def keyed() -> ForwardBackwardResult:
            key = body.idempotency_key
            if key is None:
                return work()
            digest = request_digest(body, client)
            earlier = self._responses.get(digest, "pass", client.id, str(self.pending.drops), key)
            if earlier is not None:
                answer: ForwardBackwardResult = earlier[0]
                return answer
            answer = work()
            # Counted after the pass, which may have dropped a gradient itself.
            drops = str(self.pending.drops)
            self._responses.add(digest, answer, client, "pass", client.id, drops, key)
            return answer

        return await self.run(keyed)

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, called on the session's thread."""

        def checked() -> T:
            if self.broken:
                raise ConflictError(
                    f"The training session of {self.slug!r} has ended; send the request again."
                )
            return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, checked)
