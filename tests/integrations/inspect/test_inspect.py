"""Inspect, as released: its samples are played here, and it reads our logs. `scripts/setup-integration inspect`."""

import asyncio
import math
import sys

import pytest

pytest.importorskip("inspect_ai", reason="scripts/setup-integration inspect")

from inspect_ai import Task
from inspect_ai import eval as play_task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import read_eval_log
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.scorer import Score, accuracy, f1, includes, match, scorer
from inspect_ai.solver import generate, system_message
from tests.integrations import letters

from hud import Taskset
from hud.agents import ScriptedAgent
from hud.cli.main import run as run_hud
from hud.client import connect
from hud.errors import UsageError
from hud.trace import AgentStep, ToolCall, parse_trace
from hud_integrations.inspect import InspectEnvironment


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@scorer(metrics=[accuracy()])
def by_metadata():
    async def score(state, target):
        wanted = state.metadata["wanted"]
        assert state.messages[-1].text == state.output.completion
        return Score(
            value={"length": len(state.output.completion) / 10, "same": wanted in target.text}
        )

    return score


def saying(text):
    async def say(run):
        return text

    return ScriptedAgent(say)


async def test_samples_are_tasks_graded_by_inspects_own_scorers():
    samples = [
        Sample(id="sum", input="What is 40 + 2?", target="42"),
        Sample(
            input=[ChatMessageSystem(content="Be short."), ChatMessageUser(content="Who?")],
            target=["Ada", "Lovelace"],
        ),
    ]
    env = InspectEnvironment(
        Task(dataset=MemoryDataset(samples), scorer=[includes(), f1()], name="quiz")
    )
    assert env.left_out == []
    tasks = Taskset("quiz", env.all_tasks())
    assert [task.slug for task in tasks] == ["sum", "2"]
    run = (await tasks["sum"].run(saying("It is 42"))).runs[0]
    f1_of_42 = 2 * (1 / 3) / (1 / 3 + 1)
    assert run.reward == pytest.approx((1 + f1_of_42) / 2)
    assert [one["name"] for one in run.grade.subscores] == ["includes", "f1"]
    run = (await tasks["2"].run(saying("ada lovelace"))).runs[0]
    assert [message.role for message in run.prompt] == ["system", "user"]
    assert run.reward == pytest.approx((1 + 2 / 3) / 2, abs=0.01), "Inspect rounds F1"
    assert (await tasks["sum"].run(saying(""))).runs[0].reward == 0.0


async def test_a_scorer_sees_the_sample_and_its_values_are_parts():
    sample = Sample(input="Say it.", target="abc", metadata={"wanted": "b"})
    env = InspectEnvironment(
        Task(dataset=MemoryDataset([sample]), scorer=by_metadata(), name="own")
    )
    run = (await env.all_tasks()[0].run(saying("12345"))).runs[0]
    assert run.reward == pytest.approx(0.75)
    run = (await env.all_tasks()[0].run(saying("1" * 40))).runs[0]
    assert (run.reward, run.failure_kind) == (None, "grader"), "a score of 4 is none of ours"


def test_what_cannot_be_carried_over_is_named():
    samples = [
        Sample(id="a", input="x", target="y"),
        Sample(id="b", input="x", target="A", choices=["1", "2"]),
        Sample(id="c", input="x", target="y", files={"a.txt": "text"}, sandbox="local"),
    ]
    task = Task(
        dataset=MemoryDataset(samples),
        solver=[system_message("Be brief."), generate()],
        scorer=match(),
        name="odd",
    )
    found = {(one.task, one.part, one.is_task) for one in InspectEnvironment(task).left_out}
    assert found == {
        ("b", "it has choices", True),
        ("c", "it has sandbox, files", True),
        ("odd", "solver chain", False),
    }
    with pytest.raises(UsageError, match="has no scorer"):
        InspectEnvironment(Task(dataset=MemoryDataset(samples), name="unscored"))
    with pytest.raises(UsageError, match="no sample that can be played"):
        InspectEnvironment(Task(dataset=MemoryDataset(samples[1:]), scorer=match(), name="none"))


async def test_inspect_reads_the_log_of_a_job(tmp_path):
    async def play(run):
        run.record(
            AgentStep(
                content="Spelling.",
                tool_calls=[call := ToolCall(id="1", name="spell", arguments={"word": "red"})],
            )
        )
        return (await run.call_tool(call)).text

    tasks = [*letters.tasks[:2], letters.broken(word="red")]
    job = await Taskset("letters", tasks).run(ScriptedAgent(play), group=2)
    assert run_hud(["export", job.id, "--to", "inspect", "-o", "letters.eval"]) == 0
    log = read_eval_log("letters.eval")
    assert log.status == "success"
    assert log.eval.task == "letters"
    assert {(sample.id, sample.epoch) for sample in log.samples} == {
        (task.slug, epoch) for task in tasks for epoch in (1, 2)
    }
    by_trace = {sample.metadata["trace_id"]: sample for sample in log.samples}
    first = by_trace[job.runs[0].trace_id]
    assert first.scores["reward"].value == pytest.approx(job.runs[0].reward)
    assert first.input == "Write red with different letters."
    assert [message.role for message in first.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert isinstance(first.messages[1], ChatMessageAssistant)
    assert first.messages[1].tool_calls[0].arguments == {"word": "red"}
    assert first.messages[2].text == "r e d"
    assert first.output.completion == "r e d"
    broken = by_trace[job.runs[-1].trace_id]
    assert broken.scores is None
    assert broken.error.message.startswith("grader: ")
    (score,) = log.results.scores
    assert math.isclose(score.metrics["mean"].value, job.reward)
    assert (score.scored_samples, score.unscored_samples) == (4, 2)


async def test_a_log_has_its_name_and_its_package(capsys, monkeypatch):
    job = await Taskset("letters", letters.tasks[:1]).run(saying("x"))
    assert run_hud(["export", job.id, "--to", "inspect", "-o", "letters.json"]) == 2
    assert "NAME.eval" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    assert run_hud(["export", job.id, "--to", "inspect"]) == 2
    assert "pip install inspect-ai" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["eval", "json"])
def test_a_log_of_inspect_is_imported_with_its_messages_and_scores(tmp_path, capsys, form):
    samples = [
        Sample(id="sum", input="What is 40 + 2?", target="42"),
        Sample(input="Who?", target="Ada"),
    ]
    answers = [ModelOutput.from_content("mockllm/model", "42") for _ in range(4)]
    for answer in answers:  # Without it, tokens are counted with a file of the Internet.
        answer.usage = ModelUsage(input_tokens=5, output_tokens=1, total_tokens=6)
    play_task(
        Task(
            dataset=MemoryDataset(samples), solver=generate(), scorer=match(), name="quiz", epochs=2
        ),
        model=get_model("mockllm/model", custom_outputs=answers),
        log_dir=str(tmp_path / "logs"),
        log_format=form,
        display="none",
    )
    (log,) = (tmp_path / "logs").glob(f"*.{form}")
    for again in ("", ", 4 of them again"):
        assert run_hud(["import", str(log)]) == 0
        assert f"4 runs imported from {log} (inspect){again}\n" in capsys.readouterr().out.replace(
            "\n ", " "
        )
    jobs = asyncio.run(connect().get("/v2/jobs"))["items"]
    assert [(job["name"], job["runs"], job["reward"]) for job in jobs] == [("quiz", 4, 0.5)]
    rows = asyncio.run(connect().get(f"/v2/jobs/{jobs[0]['id']}/traces"))["items"]
    (run,) = [row for row in rows if row["slug"] == "sum" and row["attempt"] == 0]
    assert (run["content"], run["reward"], run["model"]) == ("42", 1.0, "mockllm/model")
    assert [part["name"] for part in run["grade"]["subscores"]] == ["match"]
    trace = asyncio.run(connect().get(f"/v2/trace/{run['id']}/full"))["trace"]
    prompt, turn = parse_trace(trace).steps
    assert (prompt.messages[0].text, turn.content) == ("What is 40 + 2?", "42")
