"""Training on pairs of a better and a worse run of one task: direct preference optimization (DPO), and reward models.

    L = mean over pairs of -log σ(m)        m = β [(lp_w - ref_w) - (lp_l - ref_l)]

with lp a run's summed logprob under the policy, ref the same under the weights at the run's start, w the better run and l the worse
(Rafailov et al. 2023, arXiv 2305.18290, equation 7). Its gradient is that of `cross_entropy` with the token weight β σ(-m) / pairs
for w, and the negative of it for l: one pass measures the weights, another applies them.

A reward model maximizes the likelihood of the pairs under σ(r_w - r_l) (Bradley and Terry 1952; Ouyang et al. 2022, arXiv 2203.02155,
equation 1). That is the same loss with β = 1, the reward r in place of lp, and no reference.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hud.durable_files import read_object, write_file
from hud.errors import UsageError
from hud.learning.wire_types import TrajectoryPayload
from hud.train.monitoring.loss_metrics import PAIR_LOSS
from hud.train.supervised.examples import TokenizedRuns, task_key

if TYPE_CHECKING:
    from hud.client import Client
    from hud.train.learner import Learner
    from hud.train.monitoring.progress import Reporter
    from hud.train.supervised.config import SupervisedConfig


@dataclass(frozen=True)
class Pair:
    """Places of a better and a worse run of one task, among the runs that are trained on."""

    better: int
    worse: int
    weight: float = 1.0
    """Factor of its term in the mean over pairs."""


@dataclass(frozen=True)
class PairTerm:
    """Loss of one pair, and the absolute value of dL/dlp of each of its runs, before the mean over pairs."""

    margin: float
    loss: float
    weight: float


def pair_term(beta: float, better: tuple[float, float], worse: tuple[float, float]) -> PairTerm:
    """Return the DPO term of a pair, each run as (lp, ref), summed over its tokens."""
    margin = beta * ((better[0] - better[1]) - (worse[0] - worse[1]))
    # log(1 + exp(-m)), without overflow.
    loss = max(-margin, 0.0) + math.log1p(math.exp(-abs(margin)))
    sigmoid = 1 / (1 + math.exp(-margin)) if margin >= 0 else 1 - 1 / (1 + math.exp(margin))
    return PairTerm(margin, loss, beta * (1 - sigmoid))


def pairs_of(runs: TokenizedRuns, most: int = 1) -> list[Pair]:
    """Return at most `most` pairs of each task with rewards that differ: best and worst run, second best and second worst, ...

    No run is in two pairs, so that n runs have at most n // 2; of equals, the earlier run comes first. Rows of a data set of
    preferences are pairs by themselves. Raises `UsageError` without any.
    """
    by_task: dict[object, list[tuple[float, int]]] = {}
    for place, example in enumerate(runs.examples):
        if example.reward is not None:
            key = (task_key(example), example.pair)
            by_task.setdefault(key, []).append((example.reward, place))
    pairs = []
    for rated in by_task.values():
        best_first = sorted(rated, key=lambda run: (-run[0], run[1]))
        matched = zip(best_first, sorted(rated), strict=True)
        # From the middle on, the first is no better than the second.
        pairs += [Pair(best[1], worst[1]) for best, worst in matched if best[0] > worst[0]][:most]
    if not pairs:
        raise UsageError(
            "No task has two runs with different rewards, so there are no pairs to prefer: record a job with --group 4 or more."
        )
    return pairs


def weighted_by_task(pairs: Sequence[Pair], runs: TokenizedRuns) -> list[Pair]:
    """Return the pairs with weights whose mean is 1, and whose sum is equal for each task."""
    tasks = [task_key(runs.examples[pair.better]) for pair in pairs]
    counts = Counter(tasks)
    return [
        replace(pair, weight=len(pairs) / len(counts) / counts[task])
        for pair, task in zip(pairs, tasks, strict=True)
    ]


async def peoples_pairs(client: Client, runs: TokenizedRuns, criterion: str) -> list[Pair]:
    """Return the pairs of these runs of which most people prefer one by a criterion. Raises `UsageError` without any."""
    rows = await client.get("/v2/comparisons/preferred", params={"name": criterion})
    places = {example.trace.trace_id: place for place, example in enumerate(runs.examples)}
    pairs = [
        Pair(places[row["better"]], places[row["worse"]])
        for row in rows["items"]
        if row["better"] in places and row["worse"] in places
    ]
    if not pairs:
        raise UsageError(
            f"People prefer none of these runs over another by {criterion!r} (ties and even votes are left out): compare them at "
            "/review/pairs (hud view), or with hud label RUN --over OTHER."
        )
    return sorted(pairs, key=lambda pair: (pair.better, pair.worse))


class Preferences:
    """The pairs of a training run, with the reference logprobs of their runs."""

    def __init__(
        self, learner: Learner[SupervisedConfig], payloads: Sequence[TrajectoryPayload]
    ) -> None:
        self._learner, self._payloads = learner, payloads
        self._beta = learner.config.beta
        self._reference: dict[int, float] = {}
        """By place; without one, as of a reward model, 0."""

    async def begin(self, pairs: Sequence[Pair], reporter: Reporter) -> None:
        """Measure the reference logprobs before the first step, or read those of a resumed run; a reward model has none.

        Raises `UsageError` if a resumed run's are those of other runs.
        """
        if self._learner.config.loss != "dpo":
            return
        run, file = self._learner.run, Path(self._learner.run.folder) / "reference.json"
        # Of a run in several pairs, once.
        places = list(dict.fromkeys(place for pair in pairs for place in (pair.better, pair.worse)))
        if run.next_step:
            values = read_object(file, "Train again with --fresh.").get("logprobs", [])
            if len(values) != len(places):
                raise UsageError(
                    f"{file} has the reference of other runs. Train again with --fresh."
                )
        else:
            reporter.phase("update", 0, 0)
            values = [await self._logprob(place) for place in places]
            write_file(file, json.dumps({"logprobs": values}).encode())
        self._reference = dict(zip(places, map(float, values), strict=True))

    async def weighted(
        self, pairs: Sequence[Pair]
    ) -> tuple[list[TrajectoryPayload], dict[str, float]]:
        """Return the runs of a step's pairs with the token weights of their gradient, and the step's metrics."""
        runs = []
        terms = await self.terms(pairs)
        for pair, term in zip(pairs, terms, strict=True):
            weight = pair.weight * term.weight / len(pairs)
            runs.append(weighted_run(self._payloads[pair.better], weight))
            runs.append(weighted_run(self._payloads[pair.worse], -weight))
        weights = [pair.weight for pair in pairs]
        total = math.fsum(weights)

        def mean(values: Iterable[float]) -> float:
            return math.fsum(w * v for w, v in zip(weights, values, strict=True)) / total

        return runs, {
            PAIR_LOSS: mean(term.loss for term in terms),
            "preference_margin:mean": mean(term.margin for term in terms),
            "preference_accuracy:mean": mean(float(term.margin > 0) for term in terms),
            "pairs:sum": float(len(terms)),
        }

    async def terms(self, pairs: Sequence[Pair]) -> list[PairTerm]:
        """Return the terms of pairs under the present weights."""
        terms = []
        for pair in pairs:
            better, worse = [
                (await self._logprob(place), self._reference.get(place, 0.0))
                for place in (pair.better, pair.worse)
            ]
            terms.append(pair_term(self._beta, better, worse))
        return terms

    async def _logprob(self, place: int) -> float:
        return await self._learner.logprob_of(self._payloads[place])


def weighted_run(payload: TrajectoryPayload, weight: float) -> TrajectoryPayload:
    """Return a run whose sampled tokens have this weight in `cross_entropy`, times their own."""
    samples = []
    for sample in payload.samples:
        own = sample.weights or [1.0] * len(sample.output_token_ids)
        samples.append(sample.model_copy(update={"weights": [weight * value for value in own]}))
    return payload.model_copy(update={"samples": samples})
