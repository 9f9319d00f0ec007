"""Limits of `hud eval`: tokens of a turn, seconds of a tool call, what is waited for, and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hud.agents import create_agent
from hud.cli.main import run
from hud.cli.main import run as run_hud
from hud.client import disconnect

ENVIRONMENT = '''
import asyncio

from hud import Environment

env = Environment("words")


@env.tool
async def nap(seconds: float = 600.0) -> str:
    """Sleep."""
    await asyncio.sleep(seconds)
    return "rested"


@env.tool
def spell(word: str) -> str:
    """Spell a word."""
    raise ValueError("no dictionary")


@env.template()
async def say(word: str):
    answer = yield f"Say {word}."
    yield 1.0


tasks = [say(word=word) for word in ("red", "green")]
'''
AGENTS = """
from hud.agents import ScriptedAgent
from hud.trace import ToolCall


async def napping(run):
    await run.call_tool(ToolCall(name="nap"))


def napping_policy(messages, tools, trace):
    return "rested" if messages[-1]["role"] == "tool" else ToolCall(name="nap")


ready = ScriptedAgent(napping_policy)


def spelling(messages, tools, trace):
    if messages[-1]["role"] == "tool":
        return "red"
    return [ToolCall(name="spell", arguments={"word": "red"}), ToolCall(name="nap")]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    home = tmp_path / "home"
    for name in ("HUD_API_URL", "HUD_GATEWAY_URL", "HUD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HUD_HOME", str(home))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "env.py").write_text(ENVIRONMENT)
    (tmp_path / "agents.py").write_text(AGENTS)
    yield tmp_path
    disconnect(home)


@pytest.fixture
def hud(folder, capsys):
    def call(line, code=0):
        capsys.readouterr()
        assert run(shlex.split(line)) == code
        captured = capsys.readouterr()
        return captured.out if code in (0, 130) else captured.err

    return call


def create(hud, sizes):
    hud(f"models create words --tasks env.py {sizes}")


def interrupted(folder, line, shown, seconds):
    """Start a command, interrupt it once it has printed `shown`, and return its output and the seconds to its end."""
    program = Path(sys.executable).with_name("hud")
    with subprocess.Popen(
        [program, *shlex.split(line)],
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        for text in process.stdout:
            lines.append(text)
            if shown in text:
                break
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        lines.append(process.stdout.read())
        assert process.wait(120) == 130, "".join(lines)
    return "".join(lines), time.monotonic() - began


@pytest.mark.slow
def test_a_turn_of_a_local_policy_has_a_limit_and_cut_turns_are_counted(hud):
    create(hud, "--hidden 32 --layers 1 --vocab-size 300 --max-context 512")
    told = hud("eval env.py words --all --group 4 --max-tokens 2 --runtime local")
    assert re.search(r"[1-8] turns? ended at the limit of tokens", told)
    assert "--max-tokens sets it" in told
    one = json.loads(hud("eval env.py words --max-tokens 2 --temperature 0 --runtime local --json"))
    again = json.loads(
        hud("eval env.py words --max-tokens 2 --temperature 0 --runtime local --json")
    )
    assert one["statistics"]["completion_tokens"] <= 2
    assert one["runs"][0]["answer"] == again["runs"][0]["answer"]


async def test_the_default_limit_is_of_policies_and_not_of_providers(hud, monkeypatch):
    from hud.client import connect

    await connect().post(
        "/v2/models/create",
        {"name": "words", "texts": ["Say red."] * 3, "sizes": {"hidden": 32, "layers": 1}},
    )
    policy = create_agent("words")
    await policy.prepare()
    assert policy.player.params.max_tokens == 1024
    longer = create_agent("words", max_tokens=2048, temperature=0.5)
    await longer.prepare()
    assert (longer.player.params.max_tokens, longer.player.params.temperature) == (2048, 0.5)
    narrow = create_agent("words", top_p=0.9)
    await narrow.prepare()
    assert narrow.player.params.top_p == 0.9
    assert create_agent("gemini-3-pro-preview", top_p=0.9).config.top_p == 0.9
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    claude = create_agent("claude-sonnet-4-6")
    await claude.prepare()
    assert claude.config.max_tokens == 16384


@pytest.mark.parametrize(
    ("agent", "setting"),
    [
        ("claude-sonnet-4-6", "max_tokens"),
        ("gpt-5.6", "max_output_tokens"),
        ("gemini-3-pro-preview", "max_output_tokens"),
    ],
)
def test_the_limit_has_one_name_for_every_provider(agent, setting):
    assert getattr(create_agent(agent, max_tokens=99).config, setting) == 99


def test_a_setting_that_an_agent_has_not_is_refused(hud):
    told = hud("eval env.py claude --temperature 0.5", code=2)
    assert "claude takes no temperature" in told
    assert "claude takes no top_p" in hud("eval env.py claude --top-p 0.5", code=2)
    assert "takes no max_tokens" in hud("eval env.py agents.py:napping --max-tokens 5", code=2)


@pytest.mark.slow
def test_ctrl_c_ends_an_evaluation_of_a_real_model_within_a_step(folder, hud):
    create(hud, "--hidden 128 --layers 2 --vocab-size 300 --max-context 2048")
    line = "eval env.py words --all --group 2000 --max-tokens 2000 --runtime local"
    told, seconds = interrupted(folder, line, "reward", 4)
    assert "Stopping; active runs are cancelled" in told
    assert "Traceback" not in told
    assert "--resume" in told
    assert seconds < 20


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["napping", "ready"])
def test_a_hanging_tool_is_named_and_ctrl_c_ends_it(folder, agent):
    told, seconds = interrupted(
        folder, f"eval env.py agents.py:{agent} --all", "waits for its tool", 0
    )
    assert re.search(
        r"say\(word='(red|green)'\) #0 waits for its tool nap since \d\d:\d\d:\d\d, 1\d s", told
    )
    assert "and 1 more run" in told
    assert "--tool-timeout" in told
    assert seconds < 20


@pytest.mark.slow
@pytest.mark.parametrize("agent", ["napping", "napping_policy", "ready"])
def test_the_time_out_of_a_tool_holds_for_every_kind_of_agent(hud, agent):
    job = json.loads(hud(f"eval env.py agents.py:{agent} --tool-timeout 0.2 --json"))
    assert job["tool_calls"] == {"calls": 1, "failed": {"time-out": 1}}


@pytest.mark.slow
def test_the_summary_counts_failed_calls_by_kind(hud):
    told = hud("eval env.py agents.py:spelling --all --tool-timeout 0.2")
    assert "Tool calls failed: 4 of 4 (2 errors, 2 time-outs)." in told
    assert "No call succeeded in 2 runs, whose mean reward is 1.000." in told
    assert "2×  error: spell: ValueError: no dictionary" in told
    assert "2×  time-out: nap: no answer within 0.2 s." in told


@pytest.mark.slow
def test_recorded_runs_keep_the_counts_of_their_calls(hud):
    job = json.loads(hud("eval env.py agents.py:spelling --all --tool-timeout 0.2 --json"))
    again = hud(f"jobs {job['job_id'][:12]}")
    assert "Tool calls failed: 4 of 4 (2 errors, 2 time-outs)." in again
    assert "No call succeeded in 2 runs, whose mean reward is 1.000." in again
    first = hud(f"jobs {job['job_id'][:12]} --limit 1")
    assert (
        "The first 1 of 2 runs; --limit shows more. Among these:\nTool calls failed: 2 of 2"
        in first
    )
    line = f"eval env.py agents.py:spelling --all --tool-timeout 0.2 --resume {job['job_id']}"
    resumed = hud(f"{line} --group 2")
    assert "Tool calls failed: 8 of 8 (4 errors, 4 time-outs)." in resumed
    assert "No call succeeded in 4 runs, whose mean reward is 1.000." in resumed


@pytest.mark.parametrize("text", ["", "[]"])
@pytest.mark.parametrize("option", ["", " --all"])
def test_a_file_without_tasks_is_one_sentence(tmp_path, monkeypatch, capsys, text, option):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    name = "none.json" if text else "none.jsonl"
    (tmp_path / name).write_text(text)
    assert run_hud(shlex.split(f"eval {name} nothing{option}")) == 2
    assert "has no tasks; give a file or folder with at least one." in capsys.readouterr().err
