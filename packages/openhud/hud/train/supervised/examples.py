"""Examples of supervised training: the recorded runs that can be learned from, as token ids in the order of the steps."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hud import exact_json
from hud.client import Client
from hud.errors import UsageError
from hud.eval.results.failure_causes import causes
from hud.exchange.supervision import WEIGHT, conversation_of
from hud.learning.datums import payload_of, sampled_turns
from hud.learning.wire_types import TrajectoryPayload, TrajectorySample
from hud.trace import ChatMessage, Sample
from hud.train.rollouts.seeds import seed_of
from hud.train.supervised.recorded_runs import Example

if TYPE_CHECKING:
    from hud.train.supervised.config import SupervisedConfig

Unit = TypeVar("Unit")
_RENDERED_AT_ONCE = 200
_CAUSES_SHOWN = 3


def usable_examples(examples: Sequence[Example], min_reward: float | None) -> list[Example]:
    """Return the runs with a reward of at least `min_reward` and an answer or a call.

    An imported run may lack a reward. Raises `UsageError` without any.
    """
    usable = [example for example in examples if _usable(example, min_reward)]
    if not usable:
        raise UsageError(_nothing_to_learn(examples, min_reward))
    return usable


def best_of(examples: Sequence[Example], count: int) -> list[Example]:
    """Return the run with the highest reward of every `count` runs of a task, and of the rest: rejection sampling.

    Runs without a recorded task are of one task if they have the same prompt. Runs without a reward are left out; raises
    `UsageError` if none has one.
    """
    by_task: dict[Any, list[int]] = {}
    for place, example in enumerate(examples):
        if example.reward is not None:
            by_task.setdefault(task_key(example), []).append(place)
    if not by_task:
        raise UsageError("--best-of chooses runs by their rewards, and none has one.")
    rewards = [example.reward or 0.0 for example in examples]
    chosen = [
        max(places[start : start + count], key=lambda place: (rewards[place], -place))
        for places in by_task.values()
        for start in range(0, len(places), count)
    ]
    return [examples[place] for place in sorted(chosen)]


def batch_of(config: SupervisedConfig, payloads: Sequence[Unit], step: int) -> list[Unit]:
    """Return the payloads, or the pairs, of a step; every epoch has its own order, a function of the seed and the epoch.

    Batches continue across epochs. A last one beyond the epochs is short.
    """
    first, count = step * config.batch, len(payloads)
    last = first + config.batch
    if config.total_steps == -(-count * config.epochs // config.batch):
        last = min(last, count * config.epochs)
    orders: dict[int, list[Unit]] = {}
    for epoch in range(first // count, (last - 1) // count + 1):
        orders[epoch] = list(payloads)
        random.Random(seed_of("warm-up", config.seed, epoch)).shuffle(orders[epoch])
    return [orders[place // count][place % count] for place in range(first, last)]


@dataclass(frozen=True)
class TokenizedRuns:
    """Runs that fit the model's context, with their token ids."""

    examples: list[Example]
    payloads: list[TrajectoryPayload]
    note: str | None
    """Number of the runs that do not fit; None without any."""

    @property
    def digests(self) -> list[str]:
        """Digest of each run's tokens: a file that is edited has the ids of its rows still."""
        return [_digest(payload) for payload in self.payloads]

    def part(self, places: Sequence[int]) -> TokenizedRuns:
        """Return the runs at these places."""
        return TokenizedRuns(
            [self.examples[place] for place in places],
            [self.payloads[place] for place in places],
            self.note,
        )


async def tokenized(
    client: Client,
    model_id: str,
    examples: Sequence[Example],
    *,
    on_record: bool,
    verdicts: bool = False,
) -> TokenizedRuns:
    """Return the runs that fit the model's context, as token ids: the policy's own if recorded, else of their text.

    With `verdicts`, they are the two verdicts of a reward model on each run.

    With `on_record`, the policy's own are read from the embedded store, by trace id. Raises `UsageError` if none fits.
    """
    payloads: dict[int, TrajectoryPayload] = {}
    lengths: dict[int, int] = {}
    spoken: dict[int, list[ChatMessage]] = {}
    for place, example in enumerate(examples):
        own = None
        if not verdicts:
            own = payload_of(example.trace, example.reward or 0.0, on_record=on_record)
        if own is not None:
            payloads[place] = own
            lengths[place] = _length(sampled_turns(example.trace))
        else:
            spoken[place] = conversation_of(example.trace)
    context = 0
    # One call at least: it tells the model's context.
    for start in range(0, max(len(spoken), 1), _RENDERED_AT_ONCE):
        places = list(spoken)[start : start + _RENDERED_AT_ONCE]
        body: dict[str, Any] = {
            "verdicts": verdicts,
            "conversations": [
                {
                    "messages": [_without_weight(message) for message in spoken[place]],
                    "tools": [tool.model_dump() for tool in examples[place].tools],
                }
                for place in places
            ],
        }
        answer = await client.post(f"/v1/models/{model_id}/train/render", body)
        context = answer["max_context"]
        for place, rendered in zip(places, answer["samples"], strict=True):
            samples = [TrajectorySample.model_validate(sample) for sample in rendered]
            lengths[place] = _length(samples)
            if not verdicts:
                turns = [message for message in spoken[place] if message["role"] == "assistant"]
                weighed = zip(samples, turns, strict=True)
                samples = [sample for sample, turn in weighed if turn.get(WEIGHT) != 0]
            payloads[place] = TrajectoryPayload(
                samples=samples,
                reward=examples[place].reward or 0.0,
                trace_id=examples[place].trace.trace_id,
            )
    fitting = [place for place in sorted(payloads) if lengths[place] <= context]
    if not fitting:
        raise UsageError(
            f"None of the {len(examples)} runs fits the model's context of {context:,} tokens (the shortest has "
            f"{min(lengths.values()):,}): train on shorter runs, or a model with a longer context."
        )
    note = None
    if len(fitting) < len(examples):
        note = (
            f"{len(examples) - len(fitting)} of {len(examples)} runs are longer than the model's context of {context:,} tokens "
            f"(the longest has {max(lengths.values()):,}) and are left out."
        )
    return TokenizedRuns(
        [examples[place] for place in fitting], [payloads[place] for place in fitting], note
    )


def task_key(example: Example) -> Any:
    """Return what the runs of a task have in common: its identity, else the messages before the first turn."""
    if example.task is not None:
        return example.task.key
    messages = conversation_of(example.trace)
    turns = (place for place, message in enumerate(messages) if message["role"] == "assistant")
    return exact_json.dumps(messages[: next(turns, None)])


def _digest(payload: TrajectoryPayload) -> str:
    content = payload.model_dump_json(include={"samples", "recorded"})
    return hashlib.sha256(content.encode()).hexdigest()


def _without_weight(message: ChatMessage) -> ChatMessage:
    return {name: value for name, value in message.items() if name != WEIGHT}


def _length(samples: Iterable[Sample]) -> int:
    """Return the number of tokens of a run's longest sequence."""
    return max(
        (len(sample.prompt_token_ids) + len(sample.output_token_ids) for sample in samples),
        default=0,
    )


def _usable(example: Example, min_reward: float | None) -> bool:
    turns = [turn for turn in conversation_of(example.trace) if turn["role"] == "assistant"]
    if not example.may_train or all(turn.get(WEIGHT) == 0 for turn in turns):
        return False
    if example.reward is None:
        return example.imported and example.failed is None and min_reward is None
    return min_reward is None or example.reward >= min_reward


def _nothing_to_learn(examples: Sequence[Example], min_reward: float | None) -> str:
    """Return the reasons why no run is usable: failures by cause, then other reasons."""
    failed = causes(example.failed for example in examples if example.failed is not None)
    sound = [example for example in examples if example.failed is None]
    silent = sum(not conversation_of(example.trace) for example in sound)
    poor = sum(
        min_reward is not None and example.reward is not None and example.reward < min_reward
        for example in sound
    )
    reasons = [
        f"{len(cause.runs)} failed ({cause.kind}: {cause.error.rstrip('.')}; hud trace {cause.runs[0].trace_id[:12]})"
        for cause in failed[:_CAUSES_SHOWN]
    ]
    if len(failed) > _CAUSES_SHOWN:
        reasons.append(
            f"{sum(len(cause.runs) for cause in failed[_CAUSES_SHOWN:])} failed otherwise"
        )
    reasons += [f"{silent} neither answered nor called a tool"] * bool(silent)
    reasons += [f"{poor} have a reward below min_reward={min_reward}"] * bool(poor)
    private = sum(not example.may_train for example in examples)
    reasons += [f"{private} may not be trained on, by the policy of their source"] * bool(private)
    why = "; ".join(reasons) or "none has a reward"
    return f"None of the {len(examples)} runs can be learned from: {why}."
