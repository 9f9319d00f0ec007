"""Warm-up from recorded runs: which of them can be learned from, and what is said where none can."""

import json
import re

import pytest
from tests.train.test_client_training import SIZES, TEXTS, home

from hud import Environment, TrainingClient
from hud.agents import ScriptedAgent, create_agent
from hud.client import connect
from hud.errors import UsageError
from hud.eval import Taskset
from hud.exchange.supervision import conversation_of
from hud.trace import ToolCall
from hud.train.monitoring.progress import Reporter
from hud.train.supervised.config import SupervisedConfig
from hud.train.supervised.supervised_run import learn_from, warm_up

__all__ = ["home"]

env = Environment("answers")


@env.tool
def look(place: str) -> str:
    """Look at a place."""
    return f"nothing in {place}"


@env.template()
async def say(word: str):
    answer = yield f"say {word}"
    yield float(answer == word)


@env.template()
async def broken(word: str):
    yield f"say {word}"
    raise KeyError(word)


tasks = Taskset("words", [say(word=word) for word in ("red", "blue")])


async def script(run):
    return run.prompt_text.split()[-1]


async def wrong_script(run):
    return "green"


async def caller(run):
    await run.call_tool(ToolCall(id="1", name="look", arguments={"place": "here"}))
    return "nothing"


class Notes(Reporter):
    """Collects the notes of a run."""

    def __init__(self):
        self.texts = []

    def note(self, text):
        self.texts.append(text)


@pytest.mark.slow
async def test_a_final_answer_is_a_turn(home):
    """From runs of this process, and from a job on record."""
    job = await tasks.run(ScriptedAgent(script), group=2)
    assert [one["content"] for one in conversation_of(job.runs[0].trace)] == ["say red", "red"]
    from_runs = await warm_up("m", job.runs, batch=2)
    from_job = await warm_up("m", job=job.id, tasks=tasks, batch=4, epochs=2)
    assert (from_runs.runs, from_runs.left_out, from_runs.steps) == (4, 0, 2)
    assert (from_job.runs, from_job.steps) == (4, 2)
    assert from_job.last_loss < from_job.first_loss
    assert len(await TrainingClient("m").checkpoints()) == 2


async def test_a_teachers_reward_is_not_the_policys(home):
    """The list of models said 1.000 for the head, the reward of the script that it imitates."""
    job = await tasks.run(ScriptedAgent(script), group=2)
    await warm_up("m", job.runs, batch=4)
    (node,) = await TrainingClient("m").checkpoints()
    assert node.mean_reward is None
    assert node.metrics["trained_reward:mean"] == 1.0


@pytest.mark.parametrize(
    ("given", "rate"), [({}, 1e-3), ({"loss": "dpo"}, 1e-4), ({"lr": 2e-4}, 2e-4)]
)
async def test_without_a_learning_rate_it_is_the_default_of_the_model_and_the_loss(
    home, given, rate
):
    """Python trained at 1e-4, whatever the model and the loss, where the command took the default."""
    graded = Taskset("one", [say(word="red")])
    right = await graded.run(ScriptedAgent(script), group=2)
    wrong = await graded.run(ScriptedAgent(wrong_script), group=2)
    config = SupervisedConfig(model="m", batch=1, lr_schedule="constant", **given)
    reporter = Notes()
    report = await learn_from(config, [*right.runs, *wrong.runs], reporter=reporter)
    first = json.loads(report.metrics_file.read_text().splitlines()[0])
    assert first["learning_rate"] == pytest.approx(rate)
    said = [note for note in reporter.texts if note.startswith("Learning rate ")]
    assert len(said) == ("lr" not in given)


@pytest.mark.slow
async def test_a_scripts_calls_are_turns_too(home):
    sizes = {**SIZES, "max_context": 128}  # The call and its result are 90 tokens.
    await connect().post("/v2/models/create", {"name": "longer", "texts": TEXTS, "sizes": sizes})
    job = await tasks.run(ScriptedAgent(caller))
    said = conversation_of(job.runs[0].trace)
    assert [one["role"] for one in said] == ["user", "assistant", "tool", "assistant"]
    assert said[1]["tool_calls"][0]["function"]["name"] == "look"
    assert (await warm_up("longer", job=job.id, tasks=tasks)).runs == 2


async def test_where_every_run_failed_the_failures_are_named(home):
    job = await Taskset("x", [broken(word="red"), broken(word="blue")]).run(
        ScriptedAgent(script), group=2
    )
    told = (
        r"None of the 4 runs can be learned from: 2 failed \(grader: Template 'broken' raised KeyError: 'red' "
        r"\(.*test_supervised_run.py:\d+\) while grading; hud trace [0-9a-f]{12}\); 2 failed"
    )
    for given in ({"runs": job.runs}, {"job": job.id}):
        with pytest.raises(UsageError, match=told):
            await warm_up("m", **given)


async def test_runs_without_an_answer_or_below_the_reward_are_counted(home):
    job = await tasks.run(ScriptedAgent(lambda run: None))
    with pytest.raises(UsageError, match="2 neither answered nor called a tool"):
        await warm_up("m", job.runs)
    wrong = await tasks.run(ScriptedAgent(lambda run: "green"))
    with pytest.raises(UsageError, match=r"2 have a reward below min_reward=0\.5"):
        await warm_up("m", wrong.runs, min_reward=0.5)


def answers(**by_word):
    """An agent that answers a task's word with a text of its own."""

    async def answer(run):
        return by_word[run.prompt_text.split()[-1]]

    return ScriptedAgent(answer)


async def test_runs_beyond_the_context_are_left_out_and_counted(home):
    """The model of these tests has a context of 64 tokens."""
    job = await tasks.run(answers(red="red", blue="blue " * 100), group=2)
    notes = Notes()
    report = await warm_up("m", job.runs, batch=1, reporter=notes)
    assert (report.runs, report.left_out, report.steps) == (2, 2, 2)
    (note,) = [text for text in notes.texts if "context" in text]
    assert re.fullmatch(
        r"2 of 4 runs are longer than the model's context of 64 tokens \(the longest has \d{3}\) and are left out\.",
        note,
    )


async def test_where_every_run_is_beyond_the_context_nothing_begins(home):
    job = await tasks.run(answers(red="red " * 100, blue="blue " * 100))
    with pytest.raises(
        UsageError, match="None of the 2 runs fits the model's context of 64 tokens"
    ):
        await warm_up("m", job.runs)
    assert (await connect().get("/v2/training-runs"))["items"] == []
    assert (await warm_up("m", (await tasks.run(ScriptedAgent(script))).runs)).finished


async def test_the_policys_own_runs_of_another_context_are_counted_too(home):
    """Token ids of a model with a longer context are used unchanged, where they fit."""
    sizes = {**SIZES, "max_context": 512}
    await connect().post("/v2/models/create", {"name": "long", "texts": TEXTS, "sizes": sizes})
    own = create_agent("long", system_prompt="say " * 60, completion_kwargs={"max_tokens": 8})
    job = await tasks.run(own)
    short = await tasks.run(ScriptedAgent(script))
    report = await warm_up("m", [*job.runs, *short.runs])
    assert (report.runs, report.left_out) == (2, 2)
