"""verifiers, as released: its tasksets are played here, and tasks of ours are a taskset of it.

`scripts/setup-integration verifiers`
"""

import contextlib
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("verifiers.v1", reason="scripts/setup-integration verifiers")

import verifiers.v1 as vf
from verifiers.v1.errors import TaskError
from verifiers.v1.types import AssistantMessage, UserMessage
from verifiers.v1.utils.loaders import load_taskset, taskset_config_type

from hud import Taskset
from hud.agents import ScriptedAgent
from hud.client import connect
from hud.errors import UsageError
from hud_integrations.shared.jobs import forget_jobs
from hud_integrations.verifiers import VerifiersEnvironment

SUMS = """
import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class Sum(vf.Task[Data]):
    @vf.reward(weight=0.75)
    async def exact(self, trace) -> float:
        print("tasksets may print")
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def short(self, task, trace) -> float:
        return float(len(trace.last_reply) <= 2)

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(trace.last_reply))


class Config(vf.TasksetConfig):
    most: int = 3


class Sums(vf.Taskset[Sum, Config]):
    def load(self):
        for n in range(self.config.most):
            yield Sum(Data(name=f"sum-{n}", prompt=f"{n} + {n}?", system_prompt="Only the number.", answer=str(2 * n)))


__all__ = ["Sums"]
"""
ENDLESS = """
import itertools
import verifiers.v1 as vf


class Count(vf.Task[vf.TaskData]):
    @vf.reward
    async def odd(self, trace) -> float:
        return 7.0 if trace.last_reply else 1 / 0


class Counts(vf.Taskset[Count, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for n in itertools.count():
            yield Count(vf.TaskData(prompt=str(n)))


__all__ = ["Counts"]
"""
JUDGED = """
import asyncio
import os
import verifiers.v1 as vf

BOTH = asyncio.Event()
SEEN = []


class Judged(vf.Task[vf.TaskData]):
    @vf.reward
    async def one(self, trace) -> float:
        if trace.last_reply == "crash":
            os._exit(1)
        if trace.last_reply != "alone":
            SEEN.append(trace.last_reply)
            if len(SEEN) == 2:
                BOTH.set()
            await asyncio.wait_for(BOTH.wait(), 20)
        return 1.0


class Judgements(vf.Taskset[Judged, vf.TasksetConfig]):
    def load(self):
        for n in range(2):
            yield Judged(vf.TaskData(name=str(n), prompt=str(n)))


__all__ = ["Judgements"]
"""
WITH_SETUP = """
import verifiers.v1 as vf


class Boxed(vf.Task[vf.TaskData]):
    async def setup(self, trace, runtime):
        await runtime.write("a", b"b")

    @vf.reward
    async def one(self, trace) -> float:
        return 1.0


class Boxes(vf.Taskset[Boxed, vf.TasksetConfig]):
    def load(self):
        yield Boxed(vf.TaskData(name="box", prompt="x"))


__all__ = ["Boxes"]
"""
OURS = '''
from hud import Environment

env = Environment("words")
tooled = Environment("tooled")


@env.template()
async def say(word: str):
    answer = yield [{"role": "system", "content": "Be short."}, {"role": "user", "content": f"Say {word}."}]
    if answer == "break":
        raise OSError("the disk is gone")
    yield 1.0 if answer == word else 0.25


@tooled.tool
def look() -> str:
    """Look."""
    return "x"


@tooled.template()
async def see():
    yield "Look."
    yield 1.0


tasks = [say(word="sun"), say(word="pot"), see()]
'''


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    forget_jobs()


def write(tmp_path, name, text):
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))


def saying(text):
    async def say(run):
        return text

    return ScriptedAgent(say)


@contextlib.contextmanager
def playing(tmp_path, name, text, **settings):
    """A taskset of verifiers as an environment, in a module of this text."""
    write(tmp_path, name, text)
    env = VerifiersEnvironment(name, **settings)
    try:
        yield env
    finally:
        env.close()


async def test_a_taskset_of_verifiers_is_graded_by_its_own_rewards(tmp_path):
    with playing(tmp_path, "sums_of_ours", SUMS, python=sys.executable, config={"most": 4}) as env:
        tasks = Taskset("sums", env.all_tasks())
        assert [task.slug for task in tasks] == ["sum-0", "sum-1", "sum-2", "sum-3"]
        job = await tasks.run(saying("4"))
        assert [run.reward for run in job.runs] == pytest.approx([0.25, 0.25, 1.0, 0.25])
        run = job.runs[2]
        assert [(one.role, one.text) for one in run.prompt] == [
            ("system", "Only the number."),
            ("user", "2 + 2?"),
        ]
        assert run.grade.info == {
            "rewards": {"exact": 0.75, "short": 0.25},
            "metrics": {"length": 1.0},
        }
        assert (await tasks["sum-1"].run(saying("two"))).runs[0].reward == 0.0


async def test_rewards_are_scaled_and_failures_are_the_graders(tmp_path):
    with playing(tmp_path, "endless_of_ours", ENDLESS, most=2, returns=(0.0, 14.0)) as env:
        tasks = env.all_tasks()
        assert len(tasks) == 2, "of a taskset without an end"
        assert (await tasks[1].run(saying("x"))).runs[0].reward == 0.5
        run = (await tasks[1].run(saying(""))).runs[0]
        assert (run.reward, run.failure_kind) == (None, "grader")
        assert "ZeroDivisionError" in run.error


async def test_answers_are_graded_at_the_same_time(tmp_path):
    with playing(tmp_path, "judged_of_ours", JUDGED) as env:
        job = await Taskset("judged", env.all_tasks()).run(saying("together"))
        assert [run.reward for run in job.runs] == [1.0, 1.0], [run.error for run in job.runs]


async def test_a_process_of_verifiers_that_ends_fails_what_it_was_grading_and_no_more(tmp_path):
    with playing(tmp_path, "judged_of_ours", JUDGED) as env:
        task = env.all_tasks()[0]
        run = (await task.run(saying("crash"))).runs[0]
        assert (run.reward, run.failure_kind) == (None, "grader")
        assert "has ended" in run.error
        assert (await task.run(saying("alone"))).runs[0].reward == 1.0


def test_what_cannot_be_played_is_one_sentence(tmp_path):
    write(tmp_path, "boxes_of_ours", WITH_SETUP)
    for taskset, reason in (
        ("boxes_of_ours", "it has a setup hook, which works in a runtime"),
        ("openenv", "cannot be loaded"),
        ("no_such_taskset", "cannot be loaded: ModuleNotFoundError"),
    ):
        with pytest.raises(UsageError, match=reason):
            VerifiersEnvironment(taskset)
    with pytest.raises(UsageError, match="cannot be started"):
        VerifiersEnvironment("boxes_of_ours", python=str(tmp_path / "none"))


def loaded(tmp_path):
    """Load tasks of ours as verifiers does: by the id of an importable module."""
    write(tmp_path, "words_env", OURS)
    write(
        tmp_path,
        "words_of_ours",
        f"""
        from hud_integrations.verifiers import hud_taskset

        Words = hud_taskset({str(tmp_path / "words_env.py")!r})
        __all__ = ["Words"]
        """,
    )
    sys.modules.pop("words_of_ours", None)
    return load_taskset(taskset_config_type("words_of_ours")(id="words_of_ours"))


def trace_of(task, reply):
    """Return the trace of a rollout of one reply, as verifiers scores it."""
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=[
            vf.MessageNode(message=UserMessage(content=task.data.prompt_text)),
            vf.MessageNode(parent=0, message=AssistantMessage(content=reply), sampled=True),
        ],
    )


async def test_tasks_of_ours_are_a_taskset_of_verifiers(tmp_path):
    taskset = loaded(tmp_path)
    tasks = list(taskset)
    assert [task.data.idx for task in tasks] == [0, 1]
    assert [message.role for message in tasks[0].data.prompt] == ["system", "user"]
    assert [(one.task, one.part) for one in taskset.left_out] == [
        ("see", "its environment has tools (look)")
    ]
    for reply, reward in (("sun", 1.0), ("moon", 0.25)):
        trace = trace_of(tasks[0], reply)
        await tasks[0].score(trace)
        assert trace.reward == reward
    wire = vf.WireTaskData.model_validate_json(tasks[1].data.model_dump_json())
    assert wire.name == tasks[1].data.name, "a row survives the wire"
    (job,) = (await connect().get("/v2/jobs"))["items"]
    assert job["name"] == "words (verifiers)"


async def test_an_unmeasured_run_is_an_error_of_the_task(tmp_path):
    (task, *_) = list(loaded(tmp_path))
    with pytest.raises(TaskError, match="disk is gone"):
        await task.score(trace_of(task, "break"))


def test_the_child_imports_nothing_of_this_package():
    import hud_integrations.verifiers as package

    text = (Path(package.__file__).parent / "child.py").read_text()
    assert "hud" not in text.replace("hud.", "")
