"""Supervised warm-up: learn from recorded runs before learning from rewards.

    await warm_up("my-policy", job.runs, epochs=2, lr=1e-3)

The runs may be anybody's: of the policy itself, whose token ids are used as they are, or of a scripted agent, whose
turns are rendered by the model's own chat format. Knows conversations and routes; needs no torch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hud.agents.conversation import call_message, opening_messages, tool_message
from hud.client import Client, connect
from hud.errors import UsageError
from hud.trace import (
    AgentStep,
    ChatMessage,
    Step,
    ToolSpec,
    ToolStep,
    Trace,
    parse_trace,
)
from hud.train.batches import payload_of
from hud.train.client import TrainingClient
from hud.train.progress import Reporter, SilentReporter
from hud.train.schedules import ScheduleName, learning_rate
from hud.train.seeds import seed_of
from hud.train.types import TrajectoryPayload, TrajectorySample

if TYPE_CHECKING:
    from hud.eval.run import Run
    from hud.eval.taskset import Taskset

_PAGE = 500
_RENDERED_AT_ONCE = 200


@dataclass(frozen=True)
class WarmUpReport:
    """What a warm-up did."""

    model: str
    runs: int
    """Runs that were learned from."""
    left_out: int
    """Runs that were not: below `min_reward`, without one, or without a word."""
    steps: int
    first_loss: float
    """Mean loss per token of the first step."""
    last_loss: float
    head: str
    seconds: float


@dataclass(frozen=True)
class Example:
    """A recorded run to learn from."""

    trace: Trace
    tools: list[ToolSpec]
    reward: float | None


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
    """Train `model` to say what recorded runs said; every optimizer step is a checkpoint.

    Give `runs`, or the id of a `job` and the `tasks` that it played (their environments tell which tools the
    runs were offered). `batch` is runs for each step. With `min_reward`, runs below it are left out.
    """
    started = perf_counter()
    shown = reporter if reporter is not None else SilentReporter()
    client = connect()
    found = _given(runs) if runs is not None else await _recorded(client, job, tasks)
    chosen = [one for one in found if _usable(one, min_reward)]
    if not chosen:
        raise UsageError(
            f"None of the {len(found)} runs can be learned from"
            + (f" at min_reward={min_reward}" if min_reward is not None else "")
            + "; each needs a reward and at least one turn."
        )
    trainer = TrainingClient(model, client=client)
    model_id = await trainer.model_id()
    await client.post(f"/v1/models/{model_id}/train/open")
    try:
        payloads = await _payloads(client, model_id, chosen)
        order: list[TrajectoryPayload] = []
        for epoch in range(epochs):
            shuffled = list(payloads)
            random.Random(seed_of("warm-up", seed, epoch)).shuffle(shuffled)
            order += shuffled
        losses: list[float] = []
        steps = -(-len(order) // batch)
        shown.started("", 0, steps)
        head = ""
        for step in range(steps):
            rate = learning_rate(lr, step, schedule=lr_schedule, total_steps=steps + 1)
            part = order[step * batch : (step + 1) * batch]
            shown.phase("update", step, 0)
            # Means, so that the rate does not depend on how long the runs are.
            result = await trainer.forward_backward(
                part, loss_fn="cross_entropy", loss_fn_config={"token_mean": 1.0}
            )
            made = await trainer.optim_step(
                learning_rate=rate, weight_decay=weight_decay, max_grad_norm=max_grad_norm
            )
            head = made.checkpoint_id
            losses.append(_mean_loss(result.metrics))
            shown.stepped(step, {**result.metrics, "learning_rate": rate})
    finally:
        await client.post(f"/v1/models/{model_id}/train/close")
    return WarmUpReport(
        model=model,
        runs=len(chosen),
        left_out=len(found) - len(chosen),
        steps=steps,
        first_loss=losses[0],
        last_loss=losses[-1],
        head=head,
        seconds=perf_counter() - started,
    )


def conversation_of(trace: Trace) -> list[ChatMessage]:
    """Return what was said in a run as chat messages, the assistant's turns and tool results among them."""
    messages: list[ChatMessage] = []
    for step in trace.steps:
        if isinstance(step, AgentStep):
            said: ChatMessage = {"role": "assistant", "content": step.content}
            if step.reasoning:
                said["reasoning_content"] = step.reasoning
            if step.tool_calls:
                said["tool_calls"] = [call_message(call) for call in step.tool_calls]
            messages.append(said)
        elif isinstance(step, ToolStep):
            if step.call is not None and step.result is not None:
                messages.append(tool_message(step.call, step.result))
        elif type(step) is Step and step.source == "user":
            messages += opening_messages(step.messages, None)
    # After its last word an assistant is asked nothing more.
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


def _given(runs: Sequence[Run]) -> list[Example]:
    return [Example(run.trace, list(run.tools), run.reward) for run in runs]


async def _recorded(client: Client, job: str | None, tasks: Taskset | None) -> list[Example]:
    """Load a job's runs from the platform, and their tools from the environments of `tasks`."""
    if job is None:
        raise UsageError("Give runs to learn from, or the id of a job.")
    tools = await _tools_of(tasks)
    examples: list[Example] = []
    while True:
        page = await client.get(
            f"/v2/jobs/{job}/traces", params={"limit": _PAGE, "offset": len(examples)}
        )
        for row in page["items"]:
            full = await client.get(f"/v2/trace/{row['trace_id']}/full")
            trace = parse_trace(full["trace"])
            env = ((full["run"].get("task") or {}).get("env")) or ""
            examples.append(Example(trace, tools.get(env, []), full["run"]["reward"]))
        if not page["items"] or len(examples) >= page["total"]:
            return examples


async def _tools_of(tasks: Taskset | None) -> dict[str, list[ToolSpec]]:
    """Return the tools of each environment that the tasks live in."""
    tools: dict[str, list[ToolSpec]] = {}
    for task in tasks or ():
        if task.env not in tools and task.environment is not None:
            async with task.environment.run() as world:
                tools[task.env] = await world.list_tools()
    return tools


def _usable(example: Example, min_reward: float | None) -> bool:
    spoke = any(isinstance(step, AgentStep) for step in example.trace.steps)
    if example.reward is None or not spoke:
        return False
    return min_reward is None or example.reward >= min_reward


async def _payloads(
    client: Client, model_id: str, examples: list[Example]
) -> list[TrajectoryPayload]:
    """Return the runs as token ids: the policy's own where there are any, else of their text."""
    payloads: dict[int, TrajectoryPayload] = {}
    spoken: list[int] = []
    for place, one in enumerate(examples):
        own = payload_of(one.trace, one.reward or 0.0, timed_out_reward=True)
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


def _mean_loss(metrics: dict[str, float]) -> float:
    return metrics.get("loss:sum", 0.0) / max(metrics.get("action_tokens:sum", 1.0), 1.0)
