"""`hud grade`: recorded runs under a changed grader, as a new job."""

import asyncio
import json
import textwrap

import pytest

import hud.client
from hud.cli.main import run
from hud.client import connect

ENVIRONMENT = """
    from hud import Environment

    env = Environment("till")
    PRICES = {"tea": "3", "cup": "5"}

    @env.tool
    async def sell(item: str) -> str:
        env.state.sold.append(item)
        return f"sold {len(env.state.sold)}: {PRICES.get(item)}"

    @env.template()
    async def serve(item: str = "tea", count: int = 1):
        env.state.sold = []
        answer = yield f"Sell {count} {item}."
        REWARD

    tasks = [serve(item="tea"), serve(item="cup", count=2), serve(item="jar")]
"""
STRICT = "yield 1.0 if len(env.state.sold) == count and answer == 'done' else 0.0"
LENIENT = "yield 1.0 if len(env.state.sold) == count else 0.25 * ('done' in answer.lower())"
AGENT = """
    async def agent(run):
        from hud.trace import ToolCall
        item = run.task.args["item"]
        if item == "jar":
            raise RuntimeError("no jar")
        for _ in range(run.task.args.get("count", 1)):
            await run.call_tool(ToolCall(name="sell", arguments={"item": item}))
        return "Done."
"""


def write(path, reward, environment=ENVIRONMENT):
    path.write_text(textwrap.dedent(environment.replace("REWARD", reward)))


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "tasks.py", STRICT)
    (tmp_path / "clerk.py").write_text(textwrap.dedent(AGENT))
    yield tmp_path
    hud.client.disconnect(tmp_path / "home")


def hud_json(capsys, *arguments, code=0):
    capsys.readouterr()
    assert run([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def source(home, capsys):
    return hud_json(capsys, "eval", "tasks.py", "clerk.py", "--all", "--runtime", "local")


def graded(capsys, *options, code=0):
    arguments = ("grade", "latest", "--with", "tasks.py", "--runtime", "local", *options)
    return hud_json(capsys, *arguments, code=code)


def asked(path):
    return asyncio.run(connect().get(path))


def test_a_changed_grader_grades_the_record_into_a_new_job_that_names_its_source(
    home, source, capsys
):
    assert [row["reward"] for row in source["runs"]] == [0, 0, 0]
    write(home / "tasks.py", LENIENT)
    new = graded(capsys)
    assert [(row["before"], row["reward"]) for row in new["runs"]] == [(0, 1), (0, 1), (0, 0)]
    assert new["graded_from"] == source["job_id"]
    job = asked(f"/v2/jobs/{new['job_id']}")
    assert job["graded_from"] == source["job_id"]
    assert job["name"].endswith("graded again")
    before = asked(f"/v2/jobs/{source['job_id']}/traces")["items"]
    assert [row["reward"] for row in before] == [0, 0, 0]
    copy = asked(f"/v2/trace/{new['runs'][1]['trace_id']}/full")
    original = asked(f"/v2/trace/{source['runs'][1]['trace_id']}/full")
    assert copy["run"]["extra"]["graded_from"] == original["run"]["id"]
    assert copy["run"]["content"] == "Done."
    assert copy["run"]["model"] == original["run"]["model"]
    kinds = [
        [(step["source"], (step.get("call") or {}).get("name")) for step in one["trace"]["steps"]]
        for one in (copy, original)
    ]
    assert kinds[0] == kinds[1]


def test_a_failure_of_the_agent_stays_one(home, source, capsys):
    write(home / "tasks.py", "yield 1.0")
    new = graded(capsys)
    assert [row["reward"] for row in new["runs"]] == [1, 1, 0]
    copy = asked(f"/v2/trace/{new['runs'][2]['trace_id']}")
    assert copy["failure_kind"] == "agent"
    assert "no jar" in copy["error"]


def test_a_call_with_another_result_leaves_its_run_without_a_reward_and_says_which(
    home, source, capsys
):
    changed = ENVIRONMENT.replace('"cup": "5"', '"cup": "6"')
    write(home / "tasks.py", LENIENT, changed)
    new = graded(capsys)
    assert [row["reward"] for row in new["runs"]] == [1, None, 0]
    assert new["runs"][1]["error"] == (
        "Not graded again: step 3: 'sell' now returns 'sold 1: 6', and returned 'sold 1: 5'."
    )


def test_with_answers_only_no_call_is_repeated(home, source, capsys):
    changed = ENVIRONMENT.replace('"cup": "5"', '"cup": "6"')
    write(home / "tasks.py", LENIENT, changed)
    new = graded(capsys, "--answers-only")
    # Nothing is sold: the grader that reads the state is not the one for this option.
    assert [row["reward"] for row in new["runs"]] == [0.25, 0.25, 0]


def test_another_prompt_is_another_question(home, source, capsys):
    write(home / "tasks.py", LENIENT, ENVIRONMENT.replace("Sell {count}", "Please sell {count}"))
    new = graded(capsys, code=1)
    assert {row["error"] for row in new["runs"][:1]} == {
        "Not graded again: the prompt of its task is now another one: 'Please sell 1 tea.'."
    }


def test_runs_without_a_task_among_the_given_ones_are_counted(home, source, capsys):
    write(home / "tasks.py", LENIENT, ENVIRONMENT.replace('serve(item="tea"), ', ""))
    new = graded(capsys)
    assert list(new["left_out"].values()) == [1]
    assert run(["grade", source["job_id"], "--with", "tasks.py", "--runtime", "local"]) == 0
    shown = capsys.readouterr().out
    assert "1 run: without a task among these" in shown
    assert "2 of 3 runs" in shown
    write(
        home / "tasks.py", LENIENT, ENVIRONMENT.replace('Environment("till")', 'Environment("x")')
    )
    assert run(["grade", source["job_id"], "--with", "tasks.py"]) == 2
    assert "No run of job" in capsys.readouterr().err


def test_a_run_whose_grader_broke_is_graded(home, capsys):
    write(home / "tasks.py", "raise RuntimeError('the scales broke')")
    source = hud_json(capsys, "eval", "tasks.py", "clerk.py", "--all", "--runtime", "local", code=1)
    assert [row["reward"] for row in source["runs"]] == [None, None, 0]
    write(home / "tasks.py", LENIENT)
    assert [row["reward"] for row in graded(capsys)["runs"]] == [1, 1, 0]


def test_a_workspace_is_not_in_the_record(home, capsys):
    workspace = ENVIRONMENT.replace(
        'env = Environment("till")', 'env = Environment("till")\n    env.workspace()'
    )
    write(home / "tasks.py", STRICT, workspace)
    hud_json(capsys, "eval", "tasks.py", "clerk.py", "--runtime", "local")
    new = graded(capsys, code=1)
    assert "through shell, whose state was not recorded" in new["runs"][0]["error"]


def test_the_page_of_the_new_job_leads_to_its_source(home, source, capsys):
    from tests.dashboard.conftest import browse

    new = graded(capsys)

    async def page():
        from hud_platform.application import create_app
        from hud_platform.process.config import PlatformConfig

        app = create_app(PlatformConfig(home / "home"))
        async with browse(app) as client:
            text = (await client.get(f"/jobs/{new['job_id']}")).text
        app.state.parts.close()
        return text

    hud.client.disconnect(home / "home")
    shown = asyncio.run(page())
    assert "Graded again from" in shown
    assert f'href="/jobs/{source["job_id"]}"' in shown
