"""The search of a system prompt: reflective evolution over training tasks, and the gate on held-out ones.

    report = await search_prompt(PromptSearchConfig(model="my-policy", tasks="tasks.py", budget="1000rollouts"))

Each iteration draws a parent from the Pareto front, plays a minibatch with it, has the reflector propose another prompt from
these runs, and plays the same minibatch with that. A proposal that earns more is scored on the validation tasks and becomes
a candidate (GEPA, arXiv 2507.19457, Algorithm 1). The best candidate is compared with the head on held-out tasks.
An iteration is recorded at its end: a search that is killed and repeated begins its running iteration again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from random import Random
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hud.agents.agent_forms import as_agent
from hud.client import connect
from hud.errors import UsageError
from hud.eval.job import Job
from hud.eval.results.promotion_gate import Gate
from hud.eval.runtimes.rollout_runtime import as_runtime
from hud.eval.scheduler import StopSignal
from hud.eval.tasksets.taskset import Taskset
from hud.inference.models import chat_model
from hud.review.reviewer import Reviewer
from hud.trace import SamplingParams
from hud.train.budgeted.budget import Account, Spent, parse_budget
from hud.train.budgeted.splits import Splits, splits_of
from hud.train.monitoring.progress import Reporter
from hud.train.prompt_search.candidates import Candidate, best_of, choose_parent, shuffled
from hud.train.prompt_search.judgement import Judgement, judge_prompt
from hud.train.prompt_search.reflection import propose, reflection_messages
from hud.train.prompt_search.search_record import SearchRecord
from hud.train.rollouts.sampling import Rollouts
from hud.train.rollouts.seeds import seed_of

if TYPE_CHECKING:
    from hud.agents import Agent
    from hud.client import Client
    from hud.environment import Task
    from hud.environment.templates.task import Provider
    from hud.eval.run import Run
    from hud.trace import ChatModel
    from hud.train.prompt_search.config import PromptSearchConfig

REFLECTION_TOKENS = 2_048
"""Most tokens of a reflection by the model itself."""


@dataclass(frozen=True)
class _Batch:
    """Runs of tasks with the rewards that the search sees."""

    runs: list[Run]
    rewards: list[float | None]

    @property
    def measured(self) -> list[float]:
        return [reward for reward in self.rewards if reward is not None]


@dataclass
class PromptReport:
    """Result of a search."""

    run_id: str
    model: str
    prompt: str
    """The best prompt on the validation tasks; empty: no prompt."""
    own: str
    """The model's own prompt before the search."""
    iterations: int
    accepted: int
    """Proposals that became candidates."""
    before: float
    """Mean reward of the model's own prompt on the validation tasks."""
    after: float
    """That of the best candidate, chosen on the same tasks: no estimate of its gain."""
    spent: dict[str, Any]
    budget: str
    finished: bool
    judgement: Judgement | None = None
    """Comparison on held-out tasks; None: no candidate was better on the validation tasks, or the budget ended before."""
    checkpoint_id: str | None = None
    """Checkpoint with the best prompt; None: there is none to judge."""
    note: str = ""
    """Reason why nothing was judged."""

    @property
    def promoted(self) -> bool:
        """True if the head has moved to the prompt."""
        return self.judgement is not None and self.judgement.promoted

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {**asdict(self), "promoted": self.promoted}


async def search_prompt(
    config: PromptSearchConfig,
    *,
    tasks: Taskset | None = None,
    held_out: Taskset | Sequence[Taskset] | None = None,
    reflector: Agent | None = None,
    runtime: Provider | None = None,
    reporter: Reporter | None = None,
    stop: StopSignal | None = None,
    fresh: bool = False,
    looks: int = 1,
    least_rate: float = 0.0,
) -> PromptReport:
    """Search a system prompt for `config.model`, continuing the search of the same configuration if there is one.

    `tasks`, `held_out` and `reflector` replace those of the configuration. The head moves to the best prompt if the gate
    accepts it; `looks` is the number of comparisons that share its error. The search ends where an iteration is expected to gain
    less than `least_rate` per rollout. `fresh` starts a new search. Raises `UsageError` for a budget that holds no iteration,
    and for held-out tasks that are trained on.
    """
    client, reporter, stop = connect(), reporter or Reporter(), stop or StopSignal()
    splits = splits_of(config, tasks, held_out)
    row = await client.get("/v2/models/resolve", params={"model": config.model})
    config.refuse_unusable(row)
    if runtime is None:
        from hud.train.rollouts.runtimes import training_runtime  # Imports sockets and processes.

        runtime = training_runtime(config.runtime, splits.every)
    data = [f"looks {looks}", *splits.data]
    async with AsyncExitStack() as stack:
        stack.callback(reporter.close)
        stack.push_async_callback(as_runtime(runtime).aclose)
        record = await SearchRecord.open(
            client, config, row, config.on(*data).fingerprint, fresh=fresh
        )
        for note in record.command.notes:
            reporter.note(note)
        if record.command.over is not None:
            return report_of(record.command.over)
        rollouts = await Rollouts.open(
            config.playing, splits.every, runtime=runtime, reporter=reporter, stop=stop
        )
        model, params = await _reflector(client, config, reflector, stack)
        search = _Search(config, record, rollouts, splits, model, params, looks, least_rate)
        return await search.run_to_end()


async def _reflector(
    client: Client, config: PromptSearchConfig, agent: Agent | None, stack: AsyncExitStack
) -> tuple[ChatModel, SamplingParams]:
    """Return the model that proposes prompts, and its sampling parameters."""
    if agent is None and config.reflector is None:
        model = await chat_model(config.model, client=client, system_prompt="")
        return model, SamplingParams(max_tokens=REFLECTION_TOKENS)
    agent = agent or as_agent(config.reflector or "", {})
    stack.push_async_callback(agent.aclose)
    reader = await Reviewer.of_agent(agent)
    return reader.model, reader.params


def report_of(record: dict[str, Any]) -> PromptReport:
    """Return the recorded report of a finished search."""
    judgement = record["judgement"]
    values = {name: value for name, value in record.items() if name != "promoted"}
    return PromptReport(**{**values, "judgement": judgement and Judgement(**judgement)})


@dataclass
class _Search:
    """A call of `search_prompt`."""

    config: PromptSearchConfig
    record: SearchRecord
    rollouts: Rollouts
    splits: Splits
    reflector: ChatModel
    params: SamplingParams
    looks: int
    least_rate: float
    account: Account = field(init=False)
    job: Job = field(init=False)

    def __post_init__(self) -> None:
        config = self.config
        budget = parse_budget(config.budget)
        self.account = Account(
            budget, config.hour_price, Spent(**self.record.command.state.get("spent") or {})
        )
        order = Random(seed_of("validation", config.seed)).sample(
            self.splits.tasks, len(self.splits.tasks)
        )
        self.validation = order[: config.validation]
        self.minibatch = min(config.minibatch, len(self.splits.tasks))
        self.final = 2 * len(self.splits.held_out) * config.eval_group
        """Rollouts of the comparison on held-out tasks."""
        self.iteration_rollouts = 2 * self.minibatch + len(self.validation)
        """Rollouts of an iteration with an accepted proposal."""

    async def run_to_end(self) -> PromptReport:
        record, reporter, stop = self.record, self.rollouts.reporter, self.rollouts.stop
        self._refuse_small()
        reporter.started(record.command.id, record.iteration, 0)
        self.job = await Job.start(f"{self.config.model} prompt search", purpose="training")
        await record.command.add("jobs", self.job.id)
        timer = None
        if (left := self.account.seconds_left) is not None:
            # Rollouts end before the budget of time does; a second request cancels those that do not.
            timer = asyncio.get_running_loop().call_later(max(left, 0), _end, stop)
        try:
            if not record.candidates:
                await self._begin()
            while self._goes_on():
                await self._iterate(record.iteration)
        finally:
            self.job.interrupted = self.job.interrupted or stop.stopping
            await self.job.finish()
        try:
            return await self._finish()
        finally:
            if timer is not None:
                timer.cancel()

    def _goes_on(self) -> bool:
        """Return True if another iteration fits the budget, and is expected to gain enough.

        After n iterations in vain, the chance that the next proposal is accepted is taken as 1 / (n + 2), Laplace's rule of
        succession; it can gain what is left up to a reward of 1.
        """
        vain = self.record.iteration - self.record.accepted_at
        if self._stopping() or vain >= self.config.patience:
            return False
        room = 1.0 - max((candidate.mean for candidate in self.record.candidates), default=0.0)
        if room / (vain + 2) / self.iteration_rollouts < self.least_rate:
            return False
        return self.account.fits(self.iteration_rollouts + self.final)

    def _stopping(self) -> bool:
        return self.rollouts.stop.stopping

    def _refuse_small(self) -> None:
        limit = self.account.budget.rollouts
        needed = len(self.validation) + self.iteration_rollouts + self.final
        if limit is not None and not self.record.candidates and needed > limit:
            raise UsageError(
                f"A budget of {limit:,} rollouts holds no iteration: {len(self.validation)} validate the model's own prompt, "
                f"{self.iteration_rollouts} are one iteration, and {self.final} compare on {len(self.splits.held_out)} held-out tasks. Give at "
                f"least {needed:,}rollouts, a smaller --eval-group or --validation, or fewer held-out tasks."
            )

    async def _begin(self) -> None:
        """Score the model's own prompt."""
        own = await self._play(self.record.own, self.validation, ("validation",))
        if not self._stopping():
            self.record.candidates.append(self._candidate(self.record.own, None, own))
            await self.record.save(self.account.record())

    async def _iterate(self, iteration: int) -> None:
        """Make a proposal from a minibatch, and accept it if it earns more there."""
        record = self.record
        random = Random(seed_of("iteration", self.config.seed, iteration))
        parent = choose_parent(self._seen(iteration), random)
        text = record.candidates[parent].text
        batch = random.sample(self.splits.tasks, self.minibatch)
        place = ("minibatch", iteration)
        self.rollouts.reporter.phase("rollouts", iteration, 2 * len(batch))
        before = await self._play(text, batch, place)
        if self._stopping():
            return
        proposal = None
        # Nothing is to be learned from full rewards.
        if any(reward < 1.0 for reward in before.measured):
            proposal = await self._propose(text, before)
        accepted, after = False, None
        texts = {candidate.text for candidate in record.candidates}
        if proposal is not None and proposal not in texts:
            after = await self._play(proposal, batch, place)
            if self._stopping():
                return
            accepted = self._earns_more(before, after, random)
        if accepted and proposal is not None:
            scored = await self._play(proposal, self.validation, ("validation",))
            if self._stopping():
                return
            record.candidates.append(self._candidate(proposal, parent, scored))
            record.accepted_at = iteration + 1
        metrics = {
            "rollout_reward:mean": _mean(before.measured),
            "accepted": float(accepted),
            "candidates": float(len(record.candidates)),
            "best_validation_reward:mean": max(candidate.mean for candidate in record.candidates),
            "rollouts": float(self.account.spent.rollouts),
        }
        if after is not None:
            metrics["proposal_reward:mean"] = _mean(after.measured)
        await record.add_iteration(iteration, metrics, self.account.record())
        self.rollouts.reporter.stepped(iteration, metrics)

    async def _propose(self, text: str, batch: _Batch) -> str | None:
        graded, rewards = not self.config.shuffle_rewards, list(batch.rewards)
        if not graded:
            Random(seed_of("shuffle", self.config.seed, self.record.iteration)).shuffle(rewards)
        messages = reflection_messages(text, batch.runs, rewards, graded=graded)
        began = perf_counter()
        proposal, usage = await propose(self.reflector, self.params, messages)
        self.account.settle(0, usage.cost_usd or 0.0, perf_counter() - began)
        return proposal

    async def _play(self, text: str, tasks: list[Task], place: tuple[object, ...]) -> _Batch:
        """Play tasks once each with a prompt in place of the model's own; reserved in the budget before."""
        self.account.reserve(len(tasks))
        await self.record.save(self.account.record())
        began = perf_counter()
        model = await chat_model(self.config.model, client=self.record.client, system_prompt=text)
        models = await self.rollouts.models(model)
        runs = await self.rollouts.play_at(models, tasks, self.job, place)
        self.job.runs.clear()  # The job is a record only.
        cost = sum(run.cost_usd or 0.0 for run in runs)
        self.account.settle(len(tasks), cost, perf_counter() - began)
        return _Batch(runs, [run.reward for run in runs])

    def _seen(self, place: object) -> list[Candidate]:
        """Return the candidates with the rewards by which the search chooses: in a null run they have changed places."""
        candidates = self.record.candidates
        if not self.config.shuffle_rewards:
            return candidates
        return shuffled(candidates, Random(seed_of("places", self.config.seed, place)))

    def _earns_more(self, before: _Batch, after: _Batch, random: Random) -> bool:
        """Return True if a proposal's runs earn more than its parent's, where both are measured."""
        pairs = [
            (first, second)
            for first, second in zip(before.rewards, after.rewards, strict=True)
            if first is not None and second is not None
        ]
        if self.config.shuffle_rewards:
            pairs = [pair if random.random() < 0.5 else pair[::-1] for pair in pairs]
        return sum(second - first for first, second in pairs) > 0

    def _candidate(self, text: str, parent: int | None, batch: _Batch) -> Candidate:
        rewards = {
            run.slug: reward
            for run, reward in zip(batch.runs, batch.rewards, strict=True)
            if reward is not None
        }
        return Candidate(text, parent, rewards)

    async def _finish(self) -> PromptReport:
        """Compare the best prompt with the model's own on held-out tasks, unless it is the model's own."""
        record, config = self.record, self.config
        place = best_of(self._seen("best")) if record.candidates else 0
        best = record.candidates[place] if record.candidates else Candidate(record.own, None, {})
        report = PromptReport(
            run_id=record.command.id,
            model=config.model,
            prompt=best.text,
            own=record.own,
            iterations=record.iteration,
            accepted=max(0, len(record.candidates) - 1),
            before=record.candidates[0].mean if record.candidates else 0.0,
            after=best.mean,
            spent={},
            budget=str(self.account.budget),
            finished=not self._stopping(),
        )
        out_of_time = (self.account.seconds_left or 1.0) <= 0
        if self._stopping():
            report.finished = out_of_time
            report.note = (
                "The time was used up before the best prompt could be compared on held-out tasks."
            )
        elif place == 0:
            report.note = (
                "No proposal earned more on the training tasks than the model's own prompt."
            )
        elif not self.account.fits(self.final):
            report.note = (
                f"The rest of the budget does not hold the {self.final} rollouts of the comparison on held-out tasks; a larger "
                "--budget with the same command makes it."
            )
            report.finished = False
        else:
            await self._judge(report, best)
        report.spent = self.account.record()
        await record.save(self.account.record())
        await record.command.end(report.as_dict() if report.finished else None)
        return report

    async def _judge(self, report: PromptReport, best: Candidate) -> None:
        record = self.record
        report.checkpoint_id = await record.checkpoint(best.text)
        self.account.reserve(self.final)
        await record.save(self.account.record())
        began = perf_counter()
        gate = Gate(min_gain=self.config.min_gain, looks=self.looks)
        report.judgement = await judge_prompt(
            record, self.rollouts, self.splits.held_out, report.checkpoint_id, gate
        )
        self.account.settle(self.final, 0.0, perf_counter() - began)
        if report.judgement is None:
            report.finished = False
            report.note = (
                "The comparison on held-out tasks was stopped; the same command makes it again."
            )


def _mean(rewards: Sequence[float]) -> float:
    return fmean(rewards) if rewards else 0.0


def _end(stop: StopSignal) -> None:
    """Cancel what still runs at the end of a budget of time."""
    stop.request()
    if not stop.cancelled:
        stop.request()
