"""`TrainingClient`: train a model on runs.

    trainer = TrainingClient("my-policy")
    job = await tasks.run(agent, group=8)
    result = await trainer.step(job.runs, learning_rate=1e-4)       # saved, and served from now on
    print(result)                                                   # step 1: reward 0.406, 6 of 10 groups had signal

The weights are in the platform; the client needs torch for `forward_backward_custom` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from hud.client import Client, connect
from hud.client.contributor import Contributor
from hud.engine.backends.registered import PLATFORM
from hud.errors import UsageError
from hud.learning import training_calls as calls
from hud.learning.training_calls import Call
from hud.learning.wire_types import (
    AdvantageOptions,
    BackwardRequest,
    BuiltinLoss,
    CheckpointResponse,
    DiscardedGradient,
    ForwardBackwardRequest,
    ForwardBackwardResult,
    ForwardRequest,
    ForwardResult,
    LossesResult,
    LossFn,
    LossRequest,
    OpenedSession,
    OptimizerName,
    OptimStepRequest,
    OptimStepResult,
    StepResult,
    TrainInput,
)
from hud.trace import plain
from hud.train.backends.backend_models import model_on
from hud.train.custom_loss import CustomLoss, checked_loss
from hud.train.inputs import (
    TrainingInputs,
    TrainingWarning,
    teacher_hints,
    training_inputs,
    warn_without_signal,
)
from hud.train.monitoring.script_run import ScriptRun

if TYPE_CHECKING:
    from hud.eval.run import Run

__all__ = ["TrainingClient", "TrainingWarning"]

Q = TypeVar("Q", bound=BaseModel)
A = TypeVar("A", bound=BaseModel)
Trajectories = Sequence["Run | TrainInput"]


class TrainingClient:
    """The training session of one model: gradients accumulate until `optim_step` applies them."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        api_url: str | None = None,
        client: Client | None = None,
        contributor: Contributor | None = None,
        backend: str = PLATFORM,
        recorded: bool = True,
    ) -> None:
        """`model` is a slug or an id. Without addresses, the platform of the settings is used.

        `backend`: where the weights are: on the platform, or at a training service that a package adds (`TrainConfig.backend`).
        `model` may then be one of its base models, which is registered at the first call.

        `contributor` is the name under which gradients are accumulated; None: a unique one, so that no other
        `TrainingClient` applies this one's gradient.

        The optimizer steps are a training run of the platform, with their metrics; `recorded` False: the caller records one of its own.
        """
        self.model = model
        self.contributor = contributor or Contributor.here()
        self._given = client
        self._address = (api_key, base_url, api_url)
        self._backend = backend
        self._model_id: str | None = None
        self._script_run = ScriptRun() if recorded else None

    async def forward_backward(
        self,
        trajectories: Trajectories,
        *,
        loss_fn: LossFn | BuiltinLoss = BuiltinLoss.IMPORTANCE_SAMPLING,
        loss_fn_config: dict[str, float] | None = None,
        teacher: str | None = None,
        teacher_checkpoint: str | None = None,
        teacher_hint: str | None = None,
        group_size: int | None = None,
        reward_scale: float = 1.0,
        num_substeps: int = 1,
        group_ids: Sequence[str] | None = None,
        advantages: AdvantageOptions | None = None,
        max_datums: int | None = None,
        idempotency_key: str | None = None,
    ) -> ForwardBackwardResult:
        """Accumulate the gradient of a loss over a batch.

        Runs and trace ids have their own groups, in any order; `group_ids` replace them. `group_size` slices payloads
        without a group, and is rejected if it contradicts the runs. A run with a failure that is not its agent's is
        removed from its group (`AdvantageOptions.failed_runs`). A run whose calls branch has several datums, at most
        `max_datums` (default 64): those with the most sampled tokens. Warns (`TrainingWarning`) if no group has signal.

        `teacher` is the model that KL terms of the loss are taken to, in place of the base; at its head, or at `teacher_checkpoint` (an id,
        a name or `base`), where a model may be its own teacher. `teacher_hint` is the key of each grade's `info` whose text it reads before
        the first turn. Raises `UsageError` for a hint without a teacher, or without a text.
        """
        if teacher_hint is not None and teacher is None:
            raise UsageError("teacher_hint needs a teacher, which may be the model itself.")
        name = str(loss_fn)
        batch = await self._inputs(trajectories, group_size, group_ids, name, advantages)
        if teacher is None:
            warn_without_signal(batch)
        request = ForwardBackwardRequest(
            **_batch(batch, group_size, reward_scale, advantages, max_datums),
            loss_fn=name,
            loss_fn_config=loss_fn_config,
            teacher=teacher,
            teacher_checkpoint=teacher_checkpoint,
            hints=teacher_hints(trajectories, batch, teacher_hint),
            num_substeps=num_substeps,
            idempotency_key=idempotency_key,
        )
        result = await self._call(calls.FORWARD_BACKWARD, request)
        self._note(trajectories, result, {"loss": name, "substeps": num_substeps})
        return result

    async def optim_step(
        self,
        *,
        learning_rate: float,
        beta1: float = 0.9,
        beta2: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        optimizer: OptimizerName = "adamw",
        in_flight: bool = False,
        save: bool = True,
        recoverable: bool = False,
        allow_empty: bool = False,
        measured_reward: float | None = None,
        idempotency_key: str | None = None,
    ) -> OptimStepResult:
        """Apply the accumulated gradient, save a checkpoint as child of the head, and move the head to it.

        `save=False`, for many small steps, makes no checkpoint and returns the unchanged head; with `recoverable`, the step
        survives a crash all the same: the model's next session makes a checkpoint of it. With `in_flight`, active turns continue with the new weights instead of finishing with the old ones. Without an accumulated gradient:
        `ConflictError`, or the unchanged head with `allow_empty`. `measured_reward` is the mean over all measured runs of
        the step, if the batches contain only some; the checkpoint records it as its reward. `optimizer="muon"` updates hidden matrices
        by Muon (docs/optimizers.md).
        """
        request = OptimStepRequest(
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            eps=eps,
            weight_decay=weight_decay,
            max_grad_norm=max_grad_norm,
            optimizer=optimizer,
            in_flight=in_flight,
            save=save,
            recoverable=recoverable,
            allow_empty=allow_empty,
            measured_reward=measured_reward,
            idempotency_key=idempotency_key,
        )
        # OpenHUD's extensions: omitted if default, for servers without them.
        usual = {
            "save": save,
            "optimizer": optimizer == "adamw",
            "recoverable": not recoverable,
            "in_flight": not in_flight,
            "allow_empty": not allow_empty,
        }
        unsaid = {name for name, is_usual in usual.items() if is_usual}
        result = await self._call(calls.OPTIM_STEP, request, unsaid)
        await self._record(request, result)
        return result

    async def step(
        self,
        trajectories: Trajectories,
        *,
        learning_rate: float,
        loss_fn: LossFn | BuiltinLoss = BuiltinLoss.IMPORTANCE_SAMPLING,
        loss_fn_config: dict[str, float] | None = None,
        group_size: int | None = None,
        reward_scale: float = 1.0,
        num_substeps: int = 1,
        weight_decay: float = 0.0,
        group_ids: Sequence[str] | None = None,
        advantages: AdvantageOptions | None = None,
        max_datums: int | None = None,
    ) -> StepResult:
        """Accumulate one batch, as `forward_backward` does, and apply it.

        If no group has signal and nothing else was accumulated, there is no step and no checkpoint, and `applied` is
        False. That is no error: it is the state of a converged policy.
        """
        name = str(loss_fn)
        batch = await self._inputs(trajectories, group_size, group_ids, name)
        request = ForwardBackwardRequest(
            **_batch(batch, group_size, reward_scale, advantages, max_datums),
            loss_fn=name,
            loss_fn_config=loss_fn_config,
            num_substeps=num_substeps,
        )
        done = await self._call(calls.FORWARD_BACKWARD, request)
        self._note(trajectories, done, {"loss": name, "substeps": num_substeps})
        made = await self.optim_step(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            allow_empty=done.num_datums == 0,
        )
        return StepResult(
            **made.model_dump(),
            applied=bool(made.state_path),
            metrics=done.metrics,
            num_datums=done.num_datums,
        )

    async def forward(
        self,
        trajectories: Trajectories,
        *,
        group_size: int | None = None,
        reward_scale: float = 1.0,
        group_ids: Sequence[str] | None = None,
        advantages: AdvantageOptions | None = None,
        max_datums: int | None = None,
    ) -> ForwardResult:
        """Return the current policy's logprobs; `backward` continues from `forward_id`.

        `traj_idx` are indices into `trajectories`.
        """
        batch = await self._inputs(trajectories, group_size, group_ids)
        request = ForwardRequest(**_batch(batch, group_size, reward_scale, advantages, max_datums))
        result = await self._call(calls.FORWARD, request)
        for datum in result.data:
            datum.traj_idx = batch.order[datum.traj_idx]
        return result

    async def loss(self, trajectories: Trajectories) -> ForwardBackwardResult:
        """Return the sum of `cross_entropy` over a batch and its action tokens, of the present weights, without a gradient."""
        batch = await self._inputs(trajectories, None, None, BuiltinLoss.CROSS_ENTROPY)
        return await self._call(calls.LOSS, LossRequest(inputs=batch.inputs), retry=True)

    async def backward(
        self,
        forward_id: str,
        weights: Sequence[Sequence[float]],
        *,
        metrics: dict[str, float] | None = None,
    ) -> ForwardBackwardResult:
        """Accumulate the gradient of -Σ w·logprob; `weights[d][t]` is -dC/dlogprob of your loss C."""
        return await self._backward(forward_id, weights, metrics, ())

    async def forward_backward_custom(
        self,
        trajectories: Trajectories,
        loss_fn: CustomLoss,
        *,
        group_size: int | None = None,
        reward_scale: float = 1.0,
        group_ids: Sequence[str] | None = None,
    ) -> ForwardBackwardResult:
        """Accumulate the gradient of a loss of your own, written in torch over logprobs.

        `loss_fn(data, logprobs)` returns `(loss, metrics)`: `logprobs[d]` is a (T,) tensor of datum `data[d]`, and the
        loss is a differentiable scalar to minimize.
        """
        import torch

        forward = await self.forward(
            trajectories, group_size=group_size, reward_scale=reward_scale, group_ids=group_ids
        )
        leaves = [torch.tensor(datum.logprobs, requires_grad=True) for datum in forward.data]
        loss, numbers = checked_loss(loss_fn(forward.data, leaves))
        loss.backward()  # type: ignore[no-untyped-call]
        weights = [
            [0.0] * leaf.numel() if leaf.grad is None else (-leaf.grad).tolist() for leaf in leaves
        ]
        return await self._backward(forward.forward_id, weights, numbers, trajectories)

    async def discard(self) -> DiscardedGradient | None:
        """Discard the model's accumulated gradient; returns its description, None without one.

        Another client that accumulated it gets a `ConflictError` at its next call.
        """
        if self._script_run is not None:
            self._script_run.forget()
        return (await self._call(calls.DISCARD, calls.DiscardRequest(), retry=True)).discarded

    async def open(
        self, *, alone: bool = False, teacher: str | None = None, pinned: bool = False
    ) -> OpenedSession:
        """Open a session without a gradient, with an empty sampler cache.

        With `alone`, other clients are rejected until `close`, or until this process ends. Raises `UsageError` for a `teacher` that
        cannot score the model's tokens; `pinned`: passes will name a `teacher_checkpoint`, so that the model may be its own.
        """
        body = calls.OpenRequest(alone=alone, teacher=teacher, pinned=pinned)
        return await self._call(calls.OPEN, body, retry=True)

    async def hold(self) -> bool:
        """Renew an idle session opened with `alone`; returns True if it belongs to this client."""
        return (await self._call(calls.HOLD, calls.HoldRequest(), retry=True)).held

    async def close(self) -> None:
        """Close the session that this client opened with `alone`, and release the model's lease."""
        await self._call(calls.CLOSE, calls.CloseRequest(alone=True))

    async def available_losses(self) -> list[str]:
        """Return the names that `loss_fn` may take."""
        path = f"/v1/models/{await self.model_id()}/train/losses"
        return LossesResult.model_validate(await self._platform.get(path)).losses

    async def checkpoints(self) -> list[CheckpointResponse]:
        """Return the model's checkpoints, oldest first."""
        rows = await self._platform.get(f"/v2/models/{await self.model_id()}/checkpoints")
        return [CheckpointResponse.model_validate(row) for row in rows]

    async def head(self) -> CheckpointResponse | None:
        """Return the head, the checkpoint that serves; None: the base."""
        return next((node for node in await self.checkpoints() if node.is_active), None)

    async def set_head(self, checkpoint_id: str) -> None:
        """Move the head, which serves and from which the next step starts, to a checkpoint or to `base`."""
        path = f"/v2/models/{await self.model_id()}/head"
        headers = self.contributor.headers
        await self._platform.put(path, {"checkpoint_id": checkpoint_id}, headers=headers)

    async def model_id(self) -> str:
        """Return the slug's id, looked up once."""
        if self._model_id is None:
            if self._backend != PLATFORM:
                self.model = await model_on(self._backend, self._platform, self.model)
            row = await self._platform.get("/v2/models/resolve", params={"model": self.model})
            self._model_id = plain(row["id"])
        return self._model_id

    @property
    def _platform(self) -> Client:
        if self._given is not None:
            return self._given
        api_key, base_url, api_url = self._address
        if api_key is None and base_url is None and api_url is None:
            return connect()
        self._given = Client(api_url=api_url or base_url, api_key=api_key)
        return self._given

    async def _backward(
        self,
        forward_id: str,
        weights: Sequence[Sequence[float]],
        metrics: dict[str, float] | None,
        trajectories: Trajectories,
    ) -> ForwardBackwardResult:
        request = BackwardRequest(
            forward_id=forward_id,
            weights=[list(row) for row in weights],
            metrics=metrics or {},
        )
        result = await self._call(calls.BACKWARD, request)
        self._note(trajectories, result, {"loss": "custom"})
        return result

    def _note(
        self, trajectories: Trajectories, result: ForwardBackwardResult, config: dict[str, Any]
    ) -> None:
        """Note a pass for the recorded training run."""
        if self._script_run is not None:
            self._script_run.note(trajectories, result, config)

    async def _record(self, request: OptimStepRequest, result: OptimStepResult) -> None:
        """Record an optimizer step, if one was applied, in the training run."""
        run = self._script_run
        if run is None:
            return
        if not (result.state_path or run.pending) and request.allow_empty:
            run.forget()
            return
        config = {"learning_rate": request.learning_rate, "weight_decay": request.weight_decay}
        reward = request.measured_reward
        await run.record(self._platform, await self.model_id(), config, result, reward)

    async def _inputs(
        self,
        trajectories: Trajectories,
        group_size: int | None,
        group_ids: Sequence[str] | None,
        loss_fn: str | None = None,
        advantages: AdvantageOptions | None = None,
    ) -> TrainingInputs:
        """Return the request's inputs for `trajectories`, after runs sent by trace id are in the store."""
        batch = training_inputs(
            trajectories,
            group_size=group_size,
            group_ids=group_ids,
            supervised=loss_fn == BuiltinLoss.CROSS_ENTROPY,
            options=advantages,
            platform=self._platform,
        )
        for recorder in batch.recorders:
            await recorder.flush()
        return batch

    async def _call(
        self, call: Call[Q, A], request: Q, unsaid: set[str] | None = None, *, retry: bool = False
    ) -> A:
        path = f"/v1/models/{await self.model_id()}/train/{call.name}"
        body = request.model_dump(exclude_none=True, exclude=unsaid)
        headers = self.contributor.headers
        return call.answer.model_validate(
            await self._platform.post(path, body, headers=headers, retry=retry)
        )


def _batch(
    batch: TrainingInputs,
    group_size: int | None,
    reward_scale: float,
    advantages: AdvantageOptions | None,
    max_datums: int | None,
) -> dict[str, Any]:
    return {
        "inputs": batch.inputs,
        "group_ids": batch.group_ids,
        "group_size": group_size,
        "reward_scale": reward_scale,
        "advantages": advantages,
        "max_datums": max_datums,
    }
