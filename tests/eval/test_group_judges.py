"""Judges of groups: when they grade, what they write, and how they fail."""

import asyncio

import pytest

from hud import Environment
from hud.agents import ScriptedAgent
from hud.errors import GraderFault
from hud.eval import StopSignal, Taskset
from hud.eval.judging.group_judge import Judgement

env = Environment("words")


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    if answer == "broken":
        raise KeyError(word)
    yield {"score": 0.25, "subscores": [{"name": "own", "value": 0.25, "weight": 1.0}]}


tasks = Taskset("words", [say(word=word) for word in ("red", "blue")])


class ByLength:
    """Rewards long answers."""

    def __init__(self, share=1.0, fails=False):
        self.share, self.fails, self.groups = share, fails, []

    async def judge(self, runs):
        self.groups.append([(run.slug, run.attempt) for run in runs])
        await asyncio.sleep(0)
        if self.fails:
            raise GraderFault("It is asleep.")
        return [Judgement(len(run.content) / 10, {"reason": run.content}) for run in runs]


def answers(*texts):
    async def agent(run):
        text = texts[run.attempt % len(texts)]
        if text == "raise":
            raise ValueError("no")
        return text

    return ScriptedAgent(agent)


async def test_each_group_is_graded_once_with_all_its_runs():
    judge, seen = ByLength(), []
    job = await tasks.run(
        answers("a", "bbb", "ccccc"),
        group=3,
        judge=judge,
        on_run=lambda run: seen.append((run.slug, run.reward)),
    )
    slugs = [task.slug for task in tasks]
    assert sorted(map(sorted, judge.groups)) == [
        [(slug, attempt) for attempt in range(3)] for slug in sorted(slugs)
    ]
    assert [run.reward for run in job.runs] == [0.1, 0.3, 0.5] * 2
    # A reward is shown when it is the judge's.
    assert sorted(seen) == sorted((run.slug, run.reward) for run in job.runs)


async def test_the_environments_grade_is_a_part():
    job = await tasks.run(answers("a" * 10, "b"), group=2, judge=ByLength(share=0.75))
    first, second = job.runs[:2]
    assert (first.reward, second.reward) == (0.75 + 0.0625, 0.075 + 0.0625)
    judged, own = first.grade.subscores
    assert (judged["name"], judged["value"], judged["weight"]) == ("judge", 1.0, 0.75)
    assert judged["info"] == {"reason": "a" * 10}
    assert (own["name"], own["value"], own["weight"]) == ("environment", 0.25, 0.25)
    assert own["children"][0]["name"] == "own"
    assert first.trace.steps[-1].task_call.name == "judge"


async def test_only_measured_runs_are_judged_and_the_agents_failure_stays_0():
    judge = ByLength()
    job = await tasks.run(answers("a", "raise", "broken"), group=3, judge=judge)
    assert all(len(group) == 1 for group in judge.groups)
    good, failed, broken = job.runs[:3]
    assert (good.reward, failed.reward, broken.reward) == (0.1, 0.0, None)
    assert (failed.failure_kind, broken.failure_kind) == ("agent", "grader")


@pytest.mark.parametrize(
    ("judge", "sentence"),
    [
        (ByLength(fails=True), "The judge failed: It is asleep."),
        (ByLength(), "its reward is 1.2, and not from 0 to 1"),
    ],
)
async def test_a_judge_that_fails_is_infrastructure_and_never_reward_0(judge, sentence):
    job = await tasks.run(answers("a" * 12, "b"), group=2, judge=judge)
    assert {(run.reward, run.failure_kind) for run in job.runs} == {(None, "infrastructure")}
    assert all(sentence in run.error for run in job.runs)


async def test_a_stopped_job_judges_what_has_ended():
    judge, stop = ByLength(), StopSignal()

    async def agent(run):
        if run.attempt == 1:
            stop.request()
        return "aaaa"

    job = await tasks.run(ScriptedAgent(agent), group=4, judge=judge, stop=stop, max_concurrent=1)
    assert [run.reward for run in job.runs] == [0.4, 0.4]
    assert len(judge.groups) == 1


async def test_a_cancelled_job_has_no_reward_of_an_incomplete_group():
    judge, stop = ByLength(), StopSignal()

    async def agent(run):
        if run.attempt == 1:
            stop.request()
            stop.request()
            await asyncio.sleep(10)
        return "aaaa"

    job = await tasks.run(ScriptedAgent(agent), group=2, judge=judge, stop=stop, max_concurrent=1)
    assert not judge.groups
    assert [(run.reward, run.failure_kind) for run in job.runs] == [(None, "infrastructure")]


async def test_the_record_has_the_judges_reward(tmp_path, monkeypatch):
    from hud.client import connect, disconnect

    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    job = await tasks.run(answers("a", "bbb", "raise"), group=3, judge=ByLength())
    rows = (await connect().get(f"/v2/jobs/{job.id}/traces", params={"limit": 50}))["items"]
    assert sorted((row["reward"], row["status"]) for row in rows) == [
        (0.0, "error"),
        (0.0, "error"),
        (0.1, "completed"),
        (0.1, "completed"),
        (0.3, "completed"),
        (0.3, "completed"),
    ]
    disconnect(tmp_path / "home")
