"""`Learner`: one model that learns in a training loop, with its run, its session and its checkpoints.

A loop has one; a loop whose subagents learn along has one for each of their models. Knows updates and
checkpoints; knows neither tasks nor rollouts.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from hud.client import Client
from hud.errors import HudError, UsageError
from hud.inference.models import chat_model
from hud.train.checkpoint_retention import expendable_of, prune
from hud.train.client import TrainingClient
from hud.train.config import TrainConfig
from hud.train.optimizer_step import Update
from hud.train.run_journal import TrainingRun, open_run

if TYPE_CHECKING:
    from hud.eval.run import Run
    from hud.trace import ChatModel


HOLD_EVERY_SECONDS = 60.0


class Learner:
    """One model, and the training run that it is in."""

    def __init__(self, config: TrainConfig, client: Client, run: TrainingRun) -> None:
        self.config = config
        self.client = client
        self.run = run
        self.trainer = TrainingClient(run.model_id, client=client, contributor=run.contributor)
        self._holding = asyncio.create_task(self._hold())
        self._deleted: set[str] = set()
        """Checkpoints of this run whose files this process deleted."""

    @classmethod
    async def open(cls, config: TrainConfig, client: Client, *, fresh: bool) -> Learner:
        """Take the model's lease, and find or begin its training run."""
        return cls(config, client, await open_run(client, config, fresh=fresh))

    @classmethod
    async def beside(cls, leader: Learner, model: str) -> Learner:
        """Open a subagent's model, which learns in the steps of the orchestrator's training run.

        It learns first in every step, so that the step is done when the orchestrator's update is: a killed run
        finds it where its orchestrator is, or one step ahead.
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
        """Begin a step as a new process would: with nothing accumulated, and nothing in the sampler's cache."""
        await self.trainer.open(alone=True)

    async def policy(self, step: int) -> ChatModel:
        """Return the model as it was before `step`: its head, unless a killed run has taught it that step already."""
        pinned = self.run.checkpoint_before(step) if self.run.next_step > step else None
        return await chat_model(self.config.model, pinned, client=self.client)

    async def report(self, step: int, metrics: dict[str, float], checkpoint: str | None) -> None:
        """Record a step that is done."""
        await self.run.report(step, metrics, checkpoint)

    async def prune(self) -> None:
        """Delete the files of this run's checkpoints, except those that its configuration keeps."""
        expendable = expendable_of(self.config, self.run.nodes, self.run.scores) - self._deleted
        if expendable:
            await prune(self.client, self.run.model_id, expendable)
            self._deleted |= expendable

    async def close(self) -> None:
        """Give the model's lease back."""
        self._holding.cancel()
        await self.trainer.close()

    async def _hold(self) -> None:
        """Show that the run is alive; rollouts of one step may take longer than a silent run is believed to be."""
        while True:
            await asyncio.sleep(HOLD_EVERY_SECONDS)
            with suppress(HudError):  # A server that is away is noticed by the step.
                await self.trainer.hold()


class Lesson:
    """What a model learns in one step: groups that are accumulated as they come, then applied."""

    def __init__(self, learner: Learner, step: int) -> None:
        self.learner, self.step = learner, step
        self._update = Update()
        self._parts = 0

    async def add(self, groups: list[list[Run]]) -> None:
        """Accumulate the gradient of some groups."""
        config, runs = self.learner.config, [run for group in groups for run in group]
        key = f"{self.learner.run.key(self.step)}:{self._parts}"
        self._parts += 1
        await self._update.add(
            lambda: self.learner.trainer.forward_backward(
                runs,
                loss_fn=config.loss,
                loss_fn_config=config.loss_config or None,
                reward_scale=0.0 if config.zero_advantages else config.reward_scale,
                advantages=config.advantages,
                idempotency_key=key,
            )
        )

    async def apply(self, reward: float | None) -> tuple[dict[str, float], str]:
        """Change the weights; returns what was measured of the whole step, and the new checkpoint.

        `reward` is the mean over all measured runs of the step, those of groups without signal too.
        """
        learner, config = self.learner, self.learner.config
        made = await self._update.apply(
            lambda: learner.trainer.optim_step(
                learning_rate=config.learning_rate_of(self.step),
                beta1=config.beta1,
                beta2=config.beta2,
                eps=config.eps,
                weight_decay=config.weight_decay,
                max_grad_norm=config.max_grad_norm,
                in_flight=config.max_lag > 0 and config.swap == "in_flight",
                measured_reward=reward,
                idempotency_key=learner.run.key(self.step),
            )
        )
        path = f"/v2/models/{learner.run.model_id}/checkpoints/{made.checkpoint_id}"
        node = await learner.client.get(path)
        return {**node["metrics"], "model_step": float(made.step)}, made.checkpoint_id
