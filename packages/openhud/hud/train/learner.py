"""`Learner`: one model that learns in a training loop, with its run, its session and its checkpoints.

A loop has one, and another for each trained subagent model. Works on gradients, optimizer steps and checkpoints;
independent of tasks and rollouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from hud.client import Client
from hud.errors import ConflictError, HudError, PlatformError, UsageError
from hud.inference.models import chat_model
from hud.learning.wire_types import ForwardBackwardResult, TrainInput
from hud.processes.backoff import Backoff
from hud.train.checkpoint_retention import prune, retention_of
from hud.train.client import TrainingClient
from hud.train.run_journal import TrainingRun, open_run
from hud.train.run_settings import RunSettings

if TYPE_CHECKING:
    from hud.eval.run import Run
    from hud.trace import ChatModel

HOLD_EVERY_SECONDS = 60.0
ATTEMPTS = 8
PAUSES = Backoff(1.0, longest_seconds=15.0)
_MEASURED_AT_ONCE = 64
"""Runs whose loss is measured by one request."""
_PASSING = (502, 503, 504)

Answer = TypeVar("Answer")
Settings = TypeVar("Settings", bound=RunSettings)


class Learner(Generic[Settings]):
    """A trained model with its training run and the current step's gradient."""

    def __init__(self, config: Settings, client: Client, run: TrainingRun) -> None:
        self.config = config
        self.client = client
        self.run = run
        self.trainer = TrainingClient(
            run.model_id, client=client, contributor=run.contributor, recorded=False
        )
        self._passes: list[Callable[[], Awaitable[ForwardBackwardResult]]] = []
        """Calls of `forward_backward` since the last optimizer step."""
        self.pass_metrics: dict[str, float] = {}
        """Metrics of the last of these calls; a checkpoint's are of all steps since the one before."""
        self._sent = 0
        """Number of these calls accumulated by the session."""
        self._holding = asyncio.create_task(self._hold())
        self._pruning: asyncio.Task[None] | None = None
        self._deleted: set[str] = set()
        self._without_state: set[str] = set()
        """Checkpoints whose files this process deleted."""

    @classmethod
    async def open(
        cls, config: Settings, client: Client, *, fresh: bool, override_guard: bool = False
    ) -> Learner[Settings]:
        """Acquire the model's lease, and resume or create its training run (`open_run`)."""
        run = await open_run(client, config, fresh=fresh, override_guard=override_guard)
        return cls(config, client, run)

    @classmethod
    async def beside(cls, leader: Learner[Settings], model: str) -> Learner[Settings]:
        """Open a subagent's model, which learns in the steps of the orchestrator's training run.

        It is updated first in every step, and the step is complete with the orchestrator's update: after a crash it is at
        the orchestrator's step, or one ahead. Raises `UsageError` otherwise.
        """
        config = leader.config.model_copy(update={"model": model})
        fresh = not leader.run.resumed
        learner = await cls.open(config, leader.client, fresh=fresh)
        ahead = learner.run.next_step - leader.run.next_step
        if ahead in (0, 1) and learner.run.resumed == leader.run.resumed:
            return learner
        await learner.close()
        raise UsageError(
            f"Model {model!r} is not where the training run of {leader.config.model!r} left it, so the two cannot go "
            "on together. Begin a new run with --fresh."
        )

    async def begin_step(self) -> None:
        """Begin a step in the state of a new process: no gradient, and an empty sampler cache."""
        await self.trainer.open(alone=True)

    async def holds_session(self) -> bool:
        """Return True if the session of `begin_step` is open still: in the same process, with the same caches."""
        return await self._exactly_once(self.trainer.hold)

    async def policy(self, step: int) -> ChatModel:
        """Return the model before `step`: its head, or the head's parent if a crashed run has taken the step already."""
        pinned = self.run.checkpoint_before(step) if self.has_taken(step) else None
        return await chat_model(self.config.model, pinned, client=self.client)

    def has_taken(self, step: int) -> bool:
        """Return True for a step that a crashed run took with this model, but not with its orchestrator."""
        return self.run.next_step > step

    @property
    def has_gradient(self) -> bool:
        """True if a gradient was accumulated since the last optimizer step."""
        return bool(self._passes)

    async def forward_backward(
        self, step: int, groups: Sequence[Sequence[Run | TrainInput]]
    ) -> None:
        """Accumulate the gradient of some groups of a step; no effect without groups."""
        if not groups or self.has_taken(step):
            return
        runs = [run for group in groups for run in group]
        key = f"{self.run.key(step)}:{len(self._passes)}"
        self._passes.append(
            lambda: self.trainer.forward_backward(runs, **self._loss_arguments, idempotency_key=key)
        )
        await self._exactly_once(self._send)

    @property
    def _loss_arguments(self) -> dict[str, Any]:
        arguments = self.config.loss_arguments
        hinted = arguments.get("teacher_hint") is not None
        if hinted and arguments["teacher"] in (self.config.model, self.run.model_id):
            # As it was at the run's start: a teacher that learns from itself drifts with its student.
            arguments = {**arguments, "teacher_checkpoint": self.run.start or "base"}
        return arguments

    async def optim_step(
        self, step: int, reward: float | None, *, save: bool = True
    ) -> tuple[dict[str, float], str | None]:
        """Apply the accumulated gradient; returns the step's metrics and the new checkpoint, None without a gradient.

        `reward` is the mean over all measured runs of the step, including groups without signal. Without `save` there is no
        checkpoint; the step survives a crash all the same.
        """
        config = self.config
        if not self.has_gradient:
            return {}, None

        async def apply() -> Any:
            await self._send()
            return await self.trainer.optim_step(
                learning_rate=config.learning_rate_of(step),
                beta1=config.beta1,
                beta2=config.beta2,
                eps=config.eps,
                weight_decay=config.weight_decay,
                max_grad_norm=config.max_grad_norm,
                optimizer=config.optimizer,
                in_flight=config.updates_in_flight,
                save=save,
                recoverable=not save,
                measured_reward=reward,
                idempotency_key=self.run.key(step),
            )

        made = await self._exactly_once(apply)
        self._passes, self._sent = [], 0
        if not save:
            return {"model_step": float(made.step)}, None
        path = f"/v2/models/{self.run.model_id}/checkpoints/{made.checkpoint_id}"
        node = await self.client.get(path)
        return {**node["metrics"], "model_step": float(made.step)}, made.checkpoint_id

    async def loss_of(self, runs: Sequence[TrainInput]) -> float:
        """Return the loss per token of the present weights on runs, without a gradient."""
        total = tokens = 0.0
        for start in range(0, len(runs), _MEASURED_AT_ONCE):
            part = runs[start : start + _MEASURED_AT_ONCE]
            metrics = (await self._exactly_once(partial(self.trainer.loss, part))).metrics
            total += metrics["loss:sum"]
            tokens += metrics["action_tokens:sum"]
        return total / max(tokens, 1.0)

    async def logprob_of(self, run: TrainInput) -> float:
        """Return the summed logprob of a run's tokens under the present weights, without a gradient."""
        metrics = (await self._exactly_once(partial(self.trainer.loss, [run]))).metrics
        return -metrics["loss:sum"]

    async def report(self, step: int, metrics: dict[str, float], checkpoint: str | None) -> None:
        """Record a completed step; files of older checkpoints are deleted during the next one."""
        await self.run.report(step, metrics, checkpoint)
        if checkpoint is not None:
            if self._pruning is not None:
                await self._pruning
            self._pruning = asyncio.create_task(self._prune())

    async def end(self, status: str) -> None:
        """Record the end of the run: `finished` runs are never resumed."""
        if self._pruning is not None:
            await self._pruning
        await self.run.end(status)

    async def close(self) -> None:
        """Release the model's lease."""
        self._holding.cancel()
        if self._pruning is not None:
            self._pruning.cancel()
            await asyncio.gather(self._pruning, return_exceptions=True)
        await self.trainer.close()

    async def _send(self) -> None:
        while self._sent < len(self._passes):
            self.pass_metrics = (await self._passes[self._sent]()).metrics
            self._sent += 1

    async def _exactly_once(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Retry a call while the platform is unreachable; its idempotency key prevents double counting.

        If the gradient was lost with the engine's process, the platform returns a `ConflictError` once, and every pass of
        the step is sent again.
        """
        missed, failures = False, 0
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await call()
            except ConflictError:
                if missed or attempt == ATTEMPTS:
                    raise  # Twice in succession: another cause.
                missed, self._sent = True, 0
            except PlatformError as error:
                if error.status not in _PASSING or attempt == ATTEMPTS:
                    raise
                missed = False
                failures += 1
                await asyncio.sleep(PAUSES.seconds(failures))
        raise AssertionError("unreachable")

    async def _prune(self) -> None:
        """Delete the files of this run's checkpoints, by the configured retention."""
        run = self.run
        retention = retention_of(self.config, run.nodes, run.scores, run.history)
        expendable = retention.expendable - self._deleted
        weights_only = retention.weights_only - self._without_state
        if expendable or weights_only:
            await prune(self.client, self.run.model_id, expendable, weights_only)
            self._deleted |= expendable
            self._without_state |= weights_only

    async def _hold(self) -> None:
        """Renew the lease periodically: rollouts of a step may take longer than its time-out."""
        while True:
            await asyncio.sleep(HOLD_EVERY_SECONDS)
            with suppress(HudError):  # The step reports an unreachable server.
                await self.trainer.hold()
