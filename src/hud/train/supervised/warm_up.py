"""Supervised warm-up: training on recorded runs before reinforcement learning.

    await warm_up("my-policy", job.runs, epochs=2, lr=1e-3)

The runs may be of any agent: the policy's own token ids are used unchanged; a scripted agent's turns are rendered by the
model's chat format. Uses conversations and routes; needs no torch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hud.client import Client, connect
from hud.errors import UsageError
from hud.eval.results.failures import causes
from hud.learning.datums import payload_of
from hud.learning.schedules import ScheduleName, learning_rate
from hud.learning.wire_types import TrajectoryPayload, TrajectorySample
from hud.train.checkpoint_retention import prune
from hud.train.client import TrainingClient
from hud.train.monitoring.plots import loss_per_token
from hud.train.monitoring.progress import Reporter
from hud.train.rollouts.seeds import seed_of
from hud.train.run_journal import discarded_note
from hud.train.supervised.recorded_runs import (
    Example,
    conversation_of,
    examples_of,
    recorded_examples,
)

if TYPE_CHECKING:
    from hud.eval.run import Run
    from hud.eval.tasksets.taskset import Taskset

_RENDERED_AT_ONCE = 200
_CAUSES_SHOWN = 3
_SAVE_EVERY = 100
"""Steps between checkpoints: supervised steps are small and numerous."""


@dataclass(frozen=True)
class WarmUpReport:
    """Result of a warm-up."""

    model: str
    runs: int
    """Number of runs trained on."""
    left_out: int
    """Number of omitted runs: below `min_reward`, without a reward, or without an answer or a call."""
    steps: int
    first_loss: float
    """Mean loss per token of the first step."""
    last_loss: float
    head: str
    seconds: float


async def warm_up(
    model: str,
    runs: Sequence[Run] | None = None,
    *,
    job: str | None = None,
    tasks: Taskset | None = None,
    epochs: int = 1,
    lr: float = 1e-3,
    batch: int = 32,
    min_reward: float | None = None,
    lr_schedule: ScheduleName = "linear",
    weight_decay: float = 0.0,
    max_grad_norm: float | None = 1.0,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> WarmUpReport:
    """Train `model` on the assistant turns of recorded runs; of its checkpoints only the last keeps its files.

    Pass `runs`, or the id of a `job` and its `tasks` (their environments define the tools). `batch` is the number of runs
    per step. Runs below `min_reward` are omitted. Raises `UsageError` if no run is left.
    """
    started = perf_counter()
    shown = reporter or Reporter()
    client = connect()
    found = await _examples(client, runs, job, tasks)
    chosen = [one for one in found if _usable(one, min_reward)]
    if not chosen:
        raise UsageError(_nothing_to_learn(found, min_reward))
    trainer = TrainingClient(model, client=client)
    model_id = await trainer.model_id()
    opened = await trainer.open(alone=True)
    if opened.discarded is not None:
        shown.note(discarded_note(opened.discarded))
    try:
        on_record = runs is None and client.api_url is None
        payloads = await _payloads(client, model_id, chosen, on_record=on_record)
        order: list[TrajectoryPayload] = []
        for epoch in range(epochs):
            shuffled = list(payloads)
            random.Random(seed_of("warm-up", seed, epoch)).shuffle(shuffled)
            order += shuffled
        losses: list[float] = []
        steps = -(-len(order) // batch)
        shown.started("", 0, steps)
        made_here: list[str] = []
        for step in range(steps):
            rate = learning_rate(lr, step, schedule=lr_schedule, total_steps=steps + 1)
            part = order[step * batch : (step + 1) * batch]
            shown.phase("update", step, 0)
            # Means, so that the learning rate does not depend on the length of runs.
            result = await trainer.forward_backward(
                part, loss_fn="cross_entropy", loss_fn_config={"token_mean": 1.0}
            )
            save = (step + 1) % _SAVE_EVERY == 0 or step + 1 == steps
            made = await trainer.optim_step(
                learning_rate=rate,
                weight_decay=weight_decay,
                max_grad_norm=max_grad_norm,
                save=save,
            )
            if save:
                made_here.append(made.checkpoint_id)
                await prune(client, model_id, made_here[:-1])
            losses.append(loss_per_token(result.metrics) or 0.0)
            shown.stepped(step, {**result.metrics, "learning_rate": rate})
    finally:
        await trainer.close()
    return WarmUpReport(
        model=model,
        runs=len(chosen),
        left_out=len(found) - len(chosen),
        steps=steps,
        first_loss=losses[0],
        last_loss=losses[-1],
        head=made_here[-1],
        seconds=perf_counter() - started,
    )


async def _examples(
    client: Client, runs: Sequence[Run] | None, job: str | None, tasks: Taskset | None
) -> list[Example]:
    if runs is not None:
        return examples_of(runs)
    if job is None:
        raise UsageError("Give runs to learn from, or the id of a job.")
    return await recorded_examples(client, job, tasks)


def _usable(example: Example, min_reward: float | None) -> bool:
    if example.reward is None or not conversation_of(example.trace):
        return False
    return min_reward is None or example.reward >= min_reward


def _nothing_to_learn(found: Sequence[Example], min_reward: float | None) -> str:
    """Return the reasons why no run is usable: failures by cause, then other reasons."""
    failed = causes(one.failed for one in found if one.failed is not None)
    sound = [one for one in found if one.failed is None]
    silent = sum(not conversation_of(one.trace) for one in sound)
    poor = sum(
        min_reward is not None and one.reward is not None and one.reward < min_reward
        for one in sound
    )
    reasons = [
        f"{len(cause.runs)} failed ({cause.kind}: {cause.error.rstrip('.')}; hud trace {cause.runs[0].trace_id[:12]})"
        for cause in failed[:_CAUSES_SHOWN]
    ]
    if len(failed) > _CAUSES_SHOWN:
        reasons.append(f"{sum(len(one.runs) for one in failed[_CAUSES_SHOWN:])} failed otherwise")
    reasons += [f"{silent} neither answered nor called a tool"] * bool(silent)
    reasons += [f"{poor} have a reward below min_reward={min_reward}"] * bool(poor)
    said = "; ".join(reasons) or "none has a reward"
    return f"None of the {len(found)} runs can be learned from: {said}."


async def _payloads(
    client: Client, model_id: str, examples: list[Example], *, on_record: bool
) -> list[TrajectoryPayload]:
    """Return the runs as token ids: the policy's own if recorded, else of their text.

    With `on_record`, the policy's own are read from the embedded store, by trace id.
    """
    payloads: dict[int, TrajectoryPayload] = {}
    spoken: list[int] = []
    for place, one in enumerate(examples):
        own = payload_of(one.trace, one.reward or 0.0, on_record=on_record)
        if own is not None:
            payloads[place] = own
        else:
            spoken.append(place)
    for start in range(0, len(spoken), _RENDERED_AT_ONCE):
        places = spoken[start : start + _RENDERED_AT_ONCE]
        body: dict[str, Any] = {
            "conversations": [
                {
                    "messages": conversation_of(examples[place].trace),
                    "tools": [tool.model_dump() for tool in examples[place].tools],
                }
                for place in places
            ]
        }
        answer = await client.post(f"/v1/models/{model_id}/train/render", body)
        for place, samples in zip(places, answer["samples"], strict=True):
            payloads[place] = TrajectoryPayload(
                samples=[TrajectorySample.model_validate(sample) for sample in samples],
                reward=examples[place].reward or 0.0,
                trace_id=examples[place].trace.trace_id,
            )
    return [payloads[place] for place in sorted(payloads)]
