"""Held-out sets: tasks excluded from training, played in one job and scored separately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from hud.client import Client
from hud.environment.templates.task_identity import TaskIdentity, TaskIndex
from hud.errors import UsageError
from hud.eval.results.held_out_scores import Score, SetScore
from hud.eval.results.intervals import clustered_interval
from hud.eval.results.paired_differences import rewards_by_attempt
from hud.eval.tasksets.taskset import Taskset
from hud.train.monitoring.trends import change_of, recent_change_of

if TYPE_CHECKING:
    from hud.environment import Task
    from hud.eval.run import Run

BENCHMARK = "benchmark:"
"""Prefix of a held-out source: the held-out split of a benchmark."""
_PAGE = 1000
Rewards = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class _Row:
    """A recorded run of a held-out task."""

    slug: str
    attempt: int
    reward: float | None


def overlap_note(count: int, tasks: int) -> str:
    """Return the note of a training whose held-out tasks are partly trained on."""
    return f"{count} of {tasks} held-out tasks are trained on, too: their scores do not tell learning from memorizing."


class HeldOut:
    """The held-out sets of a training, and the rewards of their evaluations so far.

    A slug of two sets is prefixed with the set's name in the second; a second set of the same name is `NAME-2`.
    """

    def __init__(self, sets: Sequence[Taskset] = ()) -> None:
        self.tasks: list[Task] = []
        """The tasks of all sets, in order of play."""
        self._sets: dict[str, list[str]] = {}
        """Slugs of each set, by its name."""
        self._rewards: dict[int, Rewards] = {}
        """Rewards of each task, by the step of the evaluation."""
        names: Counter[str] = Counter()
        taken: set[str] = set()
        for taskset in sets:
            names[taskset.name] += 1
            name = (
                taskset.name
                if names[taskset.name] == 1
                else f"{taskset.name}-{names[taskset.name]}"
            )
            slugs = self._sets[name] = []
            for slug, task in taskset.items():
                own = f"{name}/{slug}" if slug in taken else slug
                slugs.append(own)
                self.tasks.append(task if own == slug else task.model_copy(update={"slug": own}))
            taken.update(slugs)

    def __bool__(self) -> bool:
        return bool(self.tasks)

    def trained_on(self, trained: Iterable[TaskIdentity]) -> int:
        """Return the number of held-out tasks that are also training tasks."""
        index = TaskIndex(trained)
        return sum(task.identity in index for task in self.tasks)

    def score(self, step: int, runs: Sequence[Run], job_id: str | None = None) -> Score | None:
        """Return the scores of an evaluation after `step` steps; None without a measured run."""
        rewards = self._rewards[step] = rewards_by_attempt(runs)
        sets = [
            set_score for name in self._sets if (set_score := self._of_set(name, step)) is not None
        ]
        if not sets:
            return None
        overall = _measured("", list(rewards.values()))
        assert overall is not None
        return Score(
            step=step,
            mean=overall.mean,
            low=overall.low,
            high=overall.high,
            runs=overall.runs,
            failed=overall.failed,
            job_id=job_id,
            sets=tuple(sets),
        )

    async def recall(self, client: Client, scores: Sequence[Score]) -> None:
        """Read the rewards of earlier evaluations, as baselines of changes."""
        for score in scores:
            if score.job_id is None or score.step in self._rewards:
                continue
            self._rewards[score.step] = await rewards_of_job(client, score.job_id)

    def _of_set(self, name: str, step: int) -> SetScore | None:
        set_score = _measured(
            name, [self._rewards[step].get(slug, ()) for slug in self._sets[name]]
        )
        if set_score is None:
            return None
        evaluations = {
            earlier: {slug: rewards[slug] for slug in self._sets[name] if slug in rewards}
            for earlier, rewards in sorted(self._rewards.items())
            if earlier <= step
        }
        return replace(
            set_score, change=change_of(evaluations), recent=recent_change_of(evaluations)
        )


async def rewards_of_job(client: Client, job_id: str) -> Rewards:
    """Return the rewards of a recorded job's runs by task, in the order of attempts."""
    rows: list[_Row] = []
    total = 1
    while len(rows) < total:
        page = await client.get(
            f"/v2/jobs/{job_id}/traces", params={"limit": _PAGE, "offset": len(rows)}
        )
        if not page["items"]:
            break
        total = page["total"]
        rows += [_Row(run["slug"], run["attempt"], run["reward"]) for run in page["items"]]
    return rewards_by_attempt(rows)


def held_out_sets(
    tasksets: Taskset | Sequence[Taskset] | None, sources: Sequence[str]
) -> list[Taskset]:
    """Return the given sets, else those of files, folders and `benchmark:NAME`.

    Raises `UsageError` for a set without tasks, `NotFoundError` for an unknown benchmark.
    """
    if tasksets is not None:
        sets = [tasksets] if isinstance(tasksets, Taskset) else list(tasksets)
    else:
        sets = [_of_source(source) for source in sources]
    for taskset in sets:
        if not len(taskset):
            raise UsageError(f"The held-out set {taskset.name!r} has no tasks.")
    return sets


def _of_source(source: str) -> Taskset:
    if not source.startswith(BENCHMARK):
        return Taskset.from_file(source)
    from hud.benchmarks import benchmark  # Its registry imports every benchmark.

    name = source.removeprefix(BENCHMARK)
    return Taskset(name, benchmark(name).tasks("held-out"))


def _measured(name: str, rewards: Sequence[Sequence[float | None]]) -> SetScore | None:
    """Return the mean of runs by task, with its interval over tasks; None without a measured run."""
    clusters = [[reward for reward in task if reward is not None] for task in rewards]
    clusters = [cluster for cluster in clusters if cluster]
    if not clusters:
        return None
    values = [reward for cluster in clusters for reward in cluster]
    interval = clustered_interval(clusters)
    return SetScore(
        name=name,
        mean=fmean(values),
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        runs=len(values),
        failed=sum(map(len, rewards)) - len(values),
    )
