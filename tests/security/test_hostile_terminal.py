"""Text that agents, models and environments write reaches a terminal as text: no escape sequence, no markup."""

import asyncio
import re

import pytest

import hud.client
from hud import Environment
from hud.cli.main import run
from hud.eval import Taskset
from hud.trace import AgentStep, ToolCall, ToolResult, ToolStep

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\x7f\u202erotcerid"
MARKUP = "[/bold][red]x[/red][link=https://evil.example]y[/link][/nothing]"
HOSTILE = f"{ESCAPES} {MARKUP}"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

env = Environment("shop")


@env.template(id="buy")
async def buy(item: str = ""):
    yield f"Buy {item}."
    yield {"score": 0.5, "content": HOSTILE, "subscores": [{"name": HOSTILE, "value": 0.5}]}


@env.template(id="fail")
async def fail(item: str = ""):
    yield f"Buy {item}."
    raise RuntimeError(HOSTILE)


async def agent(run):
    call = ToolCall(id="1", name=HOSTILE, arguments={"text": HOSTILE})
    run.record(AgentStep(content=HOSTILE, reasoning=HOSTILE, tool_calls=[call]))
    run.record(ToolStep(call=call, result=ToolResult.of_text(HOSTILE, is_error=True)))
    run.trace.content = HOSTILE


@pytest.fixture
def job(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("HUD_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.delenv("HUD_API_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    tasks = [buy(item=HOSTILE), fail(item=HOSTILE)]
    for task in tasks:
        task.slug = f"{MARKUP}-{task.id}"
    yield asyncio.run(Taskset(HOSTILE, tasks).run(agent))
    hud.client.disconnect(home)


def commands(job):
    """Return the commands that show what was recorded."""
    runs = [one.trace_id for one in job.runs]
    return [
        ["jobs"],
        ["jobs", job.id],
        ["signal", job.id],
        *(["trace", one] for one in runs),
        *(["trace", one, "--full"] for one in runs),
        ["trace", runs[0], "--spans"],
        ["jobs", "--json"],
        ["jobs", job.id, "--json"],
        ["trace", runs[0], "--json"],
        ["export", job.id, "--output", "runs.jsonl"],
    ]


@pytest.mark.slow
def test_no_command_writes_a_control_character_that_somebody_recorded(job, capsys):
    for command in commands(job):
        status = run(command)
        printed = capsys.readouterr()
        assert status == 0, (command, printed.err)
        assert not CONTROLS.findall(printed.out + printed.err), command


def test_markup_is_shown_as_it_was_written(job, capsys):
    assert run(["trace", job.runs[0].trace_id, "--full"]) == 0
    assert capsys.readouterr().out.count(MARKUP) >= 4
    assert run(["jobs", job.id]) == 0
    assert "[link=https://evil.example]" in capsys.readouterr().out


def test_errors_are_written_without_control_characters(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    (tmp_path / "env.py").write_text(f"raise ValueError({HOSTILE!r})")
    assert run(["eval", str(tmp_path / "env.py"), "claude"]) != 0
    printed = capsys.readouterr()
    assert "[/nothing]" in printed.err
    assert not CONTROLS.findall(printed.out + printed.err)


@pytest.mark.slow
def test_progress_is_written_without_control_characters(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    (tmp_path / "env.py").write_text(
        "from hud import Environment\n"
        f"env = Environment('shop')\nHOSTILE = {HOSTILE!r}\n"
        "@env.template(id=HOSTILE)\n"
        "async def buy():\n    yield HOSTILE\n    raise RuntimeError(HOSTILE)\n"
        "async def play(run):\n    run.trace.content = HOSTILE\n"
        "tasks = [buy()]\n"
    )
    run(["eval", str(tmp_path / "env.py"), f"{tmp_path / 'env.py'}:play"])
    printed = capsys.readouterr()
    assert "[/nothing]" in printed.out
    assert not CONTROLS.findall(printed.out + printed.err)
    hud.client.disconnect(tmp_path / "home")
