"""`hud jobs`, `hud trace` and `hud export` show what was recorded."""

import asyncio
import json
import subprocess
import sys

import pytest
from jsonschema import Draft202012Validator

import hud.client
from hud import Environment
from hud.cli.main import run
from hud.errors import UsageError
from hud.eval import Taskset
from hud.trace import AgentStep, Sample, ToolCall, ToolResult, ToolStep
from hud.trace.content import ImageContent
from hud.trace.trajectory_export import SCHEMA
from hud_integrations.datasets import COLUMNS

env = Environment("shop")


@env.template()
async def buy(item: str = "tea"):
    answer = yield f"What does {item} cost?"
    if item == "glass":
        raise RuntimeError("the scales broke")
    right = 1.0 if answer == "3" else 0.0
    yield {"score": right, "subscores": [{"name": "price named", "value": right, "weight": 1.0}]}


async def agent(run):
    call = ToolCall(id="1", name="price", arguments={"item": "tea"})
    run.record(AgentStep(reasoning="I had better look", tool_calls=[call]))
    run.record(ToolStep(call=call, result=ToolResult.of_text("line\n" * 20 + "w" * 300)))
    sample = Sample(prompt_token_ids=[1, 2], output_token_ids=[3], output_logprobs=[-0.5])
    run.record(AgentStep(content="It is [bold]3[/bold]", sample=sample))
    run.trace.content = "3"


@pytest.fixture
def job(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(home))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    yield asyncio.run(Taskset("shop", [buy(item="tea"), buy(item="glass")]).run(agent, group=2))
    hud.client.disconnect(home)


def said(capsys, *arguments):
    assert run(list(arguments)) == 0
    return capsys.readouterr().out


def test_jobs_are_listed(job, capsys):
    shown = said(capsys, "jobs")
    assert job.id[:12] in shown
    assert "completed" in shown
    listed = json.loads(said(capsys, "jobs", "--json"))
    assert [(one["id"], one["runs"], one["failed"], one["reward"]) for one in listed] == [
        (job.id, 4, 2, 1.0)
    ]


@pytest.mark.slow
def test_a_job_in_progress_says_how_many_of_its_runs_are_over(job, capsys):
    shown = {}

    async def looking(run):
        if run.attempt == 1:
            await run.recorder.flush()
            jobs = [sys.executable, "-c", "from hud.cli.main import run; run(['jobs'])"]
            shown["jobs"] = await asyncio.to_thread(subprocess.check_output, jobs, text=True)
        return "3"

    asyncio.run(Taskset("live", [buy(item="tea")]).run(looking, group=5, max_concurrent=1))
    (line,) = [one for one in shown["jobs"].splitlines() if " live " in one]
    assert "1 of 5" in line
    assert "5" in said(capsys, "jobs").splitlines()[1].split()


def test_a_job_is_shown_with_its_runs(job, capsys):
    shown = said(capsys, "jobs", job.id[:8], "--limit", "3")
    assert "4 runs, 2 graded, mean reward 1.000" in shown
    assert "The first 3 of 4" in shown
    whole = json.loads(said(capsys, "jobs", job.id, "--json"))
    assert [run["reward"] for run in whole["traces"]] == [1.0, 1.0, None, None]
    assert "grader:" in said(capsys, "jobs", job.id)


def test_a_trace_reads_as_a_conversation(job, capsys):
    shown = said(capsys, "trace", job.runs[0].trace_id[:8])
    listed = said(capsys, "jobs", job.id[:8], "--limit", "1")
    assert shown.split("  ")[0] in listed  # The same name of the task in both.
    for part in [
        "What does tea cost?",
        "I had better look",
        'price {"item": "tea"}',
        "9 lines more (--full)",
        "It is [bold]3[/bold]",
        "score 1.0",
        "price named: 1.000  weight 1",
    ]:
        assert part in shown
    assert "w" * 300 not in shown
    assert "w" * 300 in said(capsys, "trace", job.runs[0].trace_id, "--full")


def test_a_trace_in_json_has_its_tokens(job, capsys):
    whole = json.loads(said(capsys, "trace", job.runs[0].trace_id, "--json"))
    samples = [step["sample"] for step in whole["trace"]["steps"] if "sample" in step]
    assert [sample["output_token_ids"] for sample in samples] == [[3]]


def test_what_was_told_beside_the_steps_is_shown(job, capsys):
    trace = job.runs[0].trace_id
    assert "--spans" not in said(capsys, "trace", trace)
    assert said(capsys, "trace", trace, "--spans") == ""
    moved = {"hud.schema": "hud.robot.step.v1", "hud.payload": {"tick": 1}}
    spans = [
        {"span_id": "2", "name": "my.function", "start_time": "2026-01-02T03:04:06Z"},
        {"span_id": "1", "name": "step.observation", "attributes": moved},
        {"attributes": 3},
    ]
    path = f"/trace/{trace}/telemetry-upload"
    asyncio.run(hud.client.connect().post(path, {"telemetry": spans}))
    assert f"3 more beside the steps: hud trace {trace} --spans" in said(capsys, "trace", trace)
    shown = said(capsys, "trace", trace, "--spans")
    assert "hud.robot.step.v1  step.observation" in shown
    assert "2026-01-02T03:04:06Z  my.function" in shown
    listed = json.loads(said(capsys, "trace", trace, "--spans", "--json"))
    assert sorted(map(str, listed)) == sorted(map(str, spans))


def test_export_writes_one_valid_line_a_run(job, capsys, tmp_path):
    assert "4 runs of" in said(capsys, "export", job.id[:8], "-o", "out.jsonl")
    validator = Draft202012Validator(json.loads(SCHEMA.read_bytes()))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    for line in lines:
        validator.validate(line)
    assert [line["trace_id"] for line in lines] == [run.trace_id for run in job.runs]
    assert lines[0]["samples"][0]["output_logprobs"] == [-0.5]
    assert (lines[2]["reward"], lines[2]["failure_kind"]) == (None, "grader")


def test_export_writes_pictures_beside_the_file(job, capsys, tmp_path):
    picture = ImageContent(data="aGVsbG8=", mime_type="image/png")

    (tmp_path / "out").mkdir()

    async def looks(run):
        call = ToolCall(id="1", name="look", arguments={})
        run.record(ToolStep(call=call, result=ToolResult(content=[picture])))
        run.trace.content = "3"

    seen = asyncio.run(Taskset("shop", [buy(item="tea")]).run(looks))
    assert "1 picture written to out/seen.pictures" in said(
        capsys, "export", seen.id, "-o", "out/seen.jsonl"
    )
    line = json.loads((tmp_path / "out" / "seen.jsonl").read_text())
    Draft202012Validator(json.loads(SCHEMA.read_bytes())).validate(line)
    (shown,) = line["pictures"]
    assert (tmp_path / "out" / shown["path"]).read_bytes() == b"hello"


def test_export_to_hf_writes_a_folder_once(job, capsys, tmp_path):
    assert "4 runs of" in said(capsys, "export", job.id[:8], "--to", "hf", "-o", "out/runs")
    folder = tmp_path / "out" / "runs"
    rows = [json.loads(line) for line in (folder / "data/train.jsonl").read_text().splitlines()]
    assert [row["trace_id"] for row in rows] == [run.trace_id for run in job.runs]
    assert {tuple(row) for row in rows} == {tuple(COLUMNS)}
    assert json.loads(rows[0]["args"]) == {"item": "tea"}
    card = (folder / "README.md").read_text()
    assert "| runs | 4 |" in card
    assert run(["export", job.id, "--to", "hf", "-o", "out/runs"]) == 2
    assert "out/runs exists; name a new folder with -o" in capsys.readouterr().err
    assert run(["export", "ffffffff", "--to", "hf"]) == 2
    assert not list(tmp_path.rglob("*.partial"))


def test_what_cannot_be_written_or_found_is_told_in_a_sentence(job, capsys, tmp_path):
    assert run(["export", job.id, "-o", "no/such/folder.jsonl"]) == 2
    assert "no/such/folder.jsonl cannot be written" in capsys.readouterr().err
    assert run(["trace", "ffffffff"]) == 2
    assert "There is no trace 'ffffffff'" in capsys.readouterr().err
    assert run(["export", "ffffffff"]) == 2
    assert not list(tmp_path.glob("*.partial"))


def test_latest_is_the_newest_job(job, capsys, tmp_path, monkeypatch):
    assert json.loads(said(capsys, "jobs", "latest", "--json"))["id"] == job.id
    assert "4 runs of" in said(capsys, "export", "latest")
    assert "buy" in said(capsys, "signal", "latest")
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "empty"))
    assert run(["export", "latest"]) == 2
    assert "No job is recorded yet" in capsys.readouterr().err


def test_nothing_recorded_is_no_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "empty"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    assert "No job is recorded yet" in said(capsys, "jobs")
    hud.client.disconnect(tmp_path / "empty")


@pytest.mark.slow
def test_a_nested_trace_is_shown_where_it_was_called(tmp_path, monkeypatch, capsys):
    home = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(home))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    (tmp_path / "nested.py").write_text(
        "from hud.environment import AgentTool, Environment\n"
        "shelf, desk = Environment('shelf'), Environment('desk')\n"
        "@shelf.template()\n"
        "async def find(title: str, place: str | None = None):\n"
        "    answer = yield f'Where is {title}?'\n"
        "    yield 0.5 * (answer == place)\n"
        "desk.add_tool(AgentTool(find, name='ask'))\n"
        "@desk.template()\n"
        "async def lend(title: str = 'Emma', place: str = 'left'):\n"
        "    answer = yield f'Lend {title}.'\n"
        "    yield float(answer == place)\n"
    )
    (tmp_path / "player.py").write_text(
        "from hud.trace import ToolCall\n"
        "async def agent(run):\n"
        "    if run.task.env == 'shelf':\n"
        "        return 'left'\n"
        "    call = ToolCall(id='c', name='ask', arguments={'title': 'Emma'})\n"
        "    return (await run.call_tool(call)).text\n"
    )
    monkeypatch.chdir(tmp_path)
    report = json.loads(
        said(capsys, "eval", "nested.py", "player.py", "--json", "--task-ids", "lend")
    )
    (run_,) = report["runs"]
    assert run_["reward"] == 1.0
    lines = said(capsys, "trace", run_["trace_id"]).splitlines()
    (place,) = [number for number, line in enumerate(lines) if "subagent" in line]
    assert "ask  agent  reward 0.500  hud trace " in lines[place]
    inner, outer = lines[place + 1 : place + 4], lines[place + 4]
    assert all(line.startswith("      ") for line in inner)
    assert "Where is Emma?" in inner[1]
    assert "score 0.5" in inner[2]
    assert not outer.startswith("      ")
    shown = said(capsys, "trace", lines[place].split("hud trace ")[1].strip())
    assert "find" in shown
    hud.client.disconnect(home)


def test_a_resumed_job_plans_its_recorded_runs_and_the_missing_ones(job):
    from hud.cli.evaluation.resuming import open_job

    tasks = Taskset("shop", [buy(item="tea"), buy(item="glass")])
    resumed, finished = asyncio.run(open_job(job.id, tasks, None, None))
    assert (len(finished), resumed.planned) == (2, 6)
    asyncio.run(resumed.finish())


def test_a_job_of_another_environment_with_the_same_slugs_is_not_resumed(job):
    """It played nothing, and showed the other environment's rewards as these tasks'."""
    from hud.cli.evaluation.resuming import open_job

    other = Environment("other")

    @other.template(id="buy")
    async def buy_elsewhere(item: str):
        yield item
        yield 1.0

    tasks = Taskset("other", [buy_elsewhere(item="tea"), buy_elsewhere(item="glass")])
    with pytest.raises(
        UsageError, match=r"has no run of these tasks \(its first is '.*' of 'shop'"
    ):
        asyncio.run(open_job(job.id, tasks, None, None))


@pytest.mark.slow
def test_an_evaluation_whose_server_is_away_shows_its_rewards_all_the_same(
    tmp_path, monkeypatch, capsys
):
    """What hours of runs had earned was not shown anywhere."""
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HUD_API_URL", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shelf.py").write_text(
        'from hud import Environment\n\nenv = Environment("shelf")\n\n\n@env.template()\nasync def find():\n'
        '    answer = yield "Where?"\n    yield float(answer == "left")\n\n\ntasks = [find()]\n'
    )
    (tmp_path / "player.py").write_text("def agent(messages, tools, trace):\n    return 'left'\n")
    assert run(["eval", "shelf.py", "player.py"]) == 2
    shown = capsys.readouterr()
    assert "mean reward  1.000" in shown.out
    assert "did not answer" in shown.err
    assert "recorded in" not in shown.out
    hud.client.disconnect(tmp_path / "home")
