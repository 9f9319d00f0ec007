"""Judges of groups: a model that compares the runs of a task, a reward model, or a function.

The values of a group are relative: they rank the runs of one task, and are no scores of the tasks.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import combinations
from statistics import fmean

from hud.client import Client
from hud.errors import ContextOverflow
from hud.eval.judging.group_judge import Judgement
from hud.eval.run import Run
from hud.exchange.supervision import conversation_of
from hud.review.comparison_requests import document, instructions, values_of
from hud.review.judge_method import Method
from hud.review.position_bias import PositionBias
from hud.review.reviewer import LEAST_TEXT, Reviewer

Judging = Callable[[Sequence[Run]], list[float] | Awaitable[list[float]]]
"""A function of the runs of a group that returns a reward of each, 0 to 1."""
MOST_TEXT = 160_000
"""Characters of the runs of one request."""
_AT_ONCE = 8
"""Concurrent requests of one group."""


class RelativeJudge:
    """A judge of groups; subclasses define `judge`."""

    least = 2
    """Fewest runs of a task that it can compare."""

    def __init__(self, name: str, share: float) -> None:
        self.name, self.share = name, share
        self.closes: Callable[[], Awaitable[None]] | None = None

    async def judge(self, runs: Sequence[Run]) -> list[Judgement]:
        """Return a judgement of each run of a group."""
        raise NotImplementedError

    def calls(self, group: int) -> int:
        """Return the number of requests for a group of this size."""
        return 1

    def forecast(self, group: int, groups: int) -> str | None:
        """Return the most requests for so many groups of a size, as text; None for a judge without any."""
        calls = self.calls(group)
        if not calls:
            return None
        of_task = f"{calls} request{'' if calls == 1 else 's'} for a task of {group} runs"
        return f"judge {self.name}: {of_task}, at most {calls * groups:,} in all, and one more for each reply that cannot be read"

    def lines(self) -> list[str]:
        """Return what is known of the judge after its judgements, as text."""
        return []

    async def aclose(self) -> None:
        """Close its model."""
        if self.closes is not None:
            await self.closes()


class ModelJudge(RelativeJudge):
    """A model that scores, ranks or compares the runs of a group by criteria.

    `scores` and `ranking` show all runs in one request, in an order by the seed, and in another one in its reverse. `pairwise` shows
    each pair in both orders; a run's reward is the share of its comparisons that it wins. A reward is the mean over the requests.
    """

    def __init__(
        self,
        name: str,
        reviewer: Reviewer,
        method: Method,
        criteria: Sequence[tuple[str, float]],
        *,
        share: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__(name, share)
        self._reviewer, self._method, self._seed = reviewer, method, seed
        self._weights = [weight for _, weight in criteria]
        self._instructions = instructions(method, criteria)
        self._groups: dict[str, int] = {}
        self.bias = PositionBias()
        self.least = 1 if method == "scores" else 2

    def calls(self, group: int) -> int:
        if group < self.least:
            return 0
        return group * (group - 1) if self._method == "pairwise" else min(2, group)

    async def judge(self, runs: Sequence[Run]) -> list[Judgement]:
        if len(runs) < self.least:
            return [Judgement(0.5, {"judge": self.name, "reason": "There is no other run."})]
        slug = runs[0].slug
        number = self._groups[slug] = self._groups.get(slug, 0) + 1
        order = list(range(len(runs)))
        random.Random(f"{self._seed} {slug} {number}").shuffle(order)
        sets = list(combinations(order, 2)) if self._method == "pairwise" else [tuple(order)]
        orders = [shown for some in sets for shown in dict.fromkeys((some, some[::-1]))]
        limit = asyncio.Semaphore(_AT_ONCE)
        replies = await asyncio.gather(
            *(self._compared([runs[place] for place in shown], limit) for shown in orders)
        )
        values: list[list[float]] = [[] for _ in runs]
        reasons: list[list[str]] = [[] for _ in runs]
        for shown, (of_shown, why) in zip(orders, replies, strict=True):
            if len(shown) > 1:
                self.bias.add(slug, of_shown)
            for place, value, reason in zip(shown, of_shown, why, strict=True):
                values[place].append(value)
                reasons[place].append(reason)
        if len(runs) > 1:
            for forth, back in zip(replies[::2], replies[1::2], strict=True):
                self.bias.add_both(forth[0], back[0])
        return [
            Judgement(fmean(own), {"judge": self.name, "values": own, "reasons": why})
            for own, why in zip(values, reasons, strict=True)
        ]

    async def _compared(
        self, runs: Sequence[Run], limit: asyncio.Semaphore
    ) -> tuple[list[float], list[str]]:
        """Return the values of runs in the order in which they are shown, shortened to the model's window."""
        most = max(MOST_TEXT // len(runs), LEAST_TEXT)
        read = partial(values_of, method=self._method, weights=self._weights, count=len(runs))
        while True:
            try:
                async with limit:
                    return await self._reviewer.reply(
                        self._instructions, document(runs, most), read
                    )
            except ContextOverflow:
                most //= 2
                if most < LEAST_TEXT:
                    raise

    def lines(self) -> list[str]:
        usage = self._reviewer.usage
        cost = "" if usage.cost_usd is None else f", ${usage.cost_usd:.4f}"
        spent = f"{usage.llm_call_count:,} requests, {usage.prompt_tokens:,} tokens in, {usage.completion_tokens:,} out{cost}"
        return [f"judge {self.name}  {self._method}, {spent}", *self.bias.lines()]


class RewardModelJudge(RelativeJudge):
    """A reward model; a run's reward is the mean probability with which it is better than each other run: σ(r_i - r_j)."""

    def __init__(self, name: str, client: Client, *, share: float = 1.0) -> None:
        super().__init__(name, share)
        self._client = client

    async def judge(self, runs: Sequence[Run]) -> list[Judgement]:
        conversations = [{"messages": conversation_of(run.trace)} for run in runs]
        path = f"/v2/models/{self.name}/rewards"
        rewards = (await self._client.post(path, {"conversations": conversations}))["rewards"]
        return [
            Judgement(won, {"judge": self.name, "reward": reward})
            for won, reward in zip(win_shares(rewards), rewards, strict=True)
        ]


class FunctionJudge(RelativeJudge):
    """A function of a list of runs that returns a reward of each, 0 to 1; it may be async."""

    least = 1

    def __init__(
        self,
        name: str,
        function: Judging,
        *,
        share: float = 1.0,
    ) -> None:
        super().__init__(name, share)
        self._function = function

    def calls(self, group: int) -> int:
        del group
        return 0

    async def judge(self, runs: Sequence[Run]) -> list[Judgement]:
        rewards = self._function(runs)
        if inspect.isawaitable(rewards):
            rewards = await rewards
        return [Judgement(float(reward), {"judge": self.name}) for reward in rewards]


def win_shares(rewards: Sequence[float]) -> list[float]:
    """Return, for each reward in nats, the mean probability of winning against each other one; 0.5 without another."""
    return [
        fmean(
            1 / (1 + math.exp(min(other - reward, 700.0)))
            for at, other in enumerate(rewards)
            if at != place
        )
        if len(rewards) > 1
        else 0.5
        for place, reward in enumerate(rewards)
    ]
