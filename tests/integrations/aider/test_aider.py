"""aider, with its defaults, mends a file: it edits by text, and a failed check comes back to it as the next prompt."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from tests.integrations.programs.mended_file import CHECK, WRONG, played
from tests.integrations.programs.recipes import TASK, Recipe
from tests.platform.gateway.scripted_server import ScriptedTurn, scripted_server
from tests.sources import ROOT

from hud import Environment
from hud.agents.agent_forms import as_agent
from hud.eval.rollouts import rollout
from hud.learning.datums import datums_of, payload_of
from hud.trace import AgentStep, Trace, new_id, parse_step
from hud.trace.recording.recorder import NullRecorder
from hud.trace.sampled.call_samples import expand_samples

VERSIONS = os.environ.get("HUD_TEST_NEWEST", "")
"""`-newest` for the newest version; else the pinned one."""
AIDER = ROOT / ".venv-integrations" / f"aider{VERSIONS}" / "bin" / "aider"
pytestmark = [
    pytest.mark.skipif(not AIDER.exists(), reason="scripts/setup-integration aider"),
    pytest.mark.timeout(300),
]
EDITOR = "Act as an expert software developer"
"""Begins the prompts of the editor; those of the commit message hold the task, too."""


def listing(expression):
    """Return the text by which aider's `whole` format replaces the file."""
    return f"total.py\n```\ndef total(a, b):\n    return {expression}\n```\n"


def turns(folder):
    return [
        ScriptedTurn("It subtracts.", text=listing("a * b")),
        ScriptedTurn("No product.", text=f"It is a sum.\n\n{listing('a + b')}"),
    ]


RECIPE = Recipe(
    [
        *(str(AIDER), "--model", "openai/scripted", "--message", TASK, "--yes-always"),
        *("--auto-test", "--test-cmd", "python3 check.py", "total.py"),
    ],
    turns,
    # It writes the files' contents anew before each request, and the instructions after them.
    extends=0,
    extends_in_a_run=0,
    mark=EDITOR,
    says="passed",
)


def test_aider_solves_a_task_with_its_defaults(tmp_path):
    with played(tmp_path, RECIPE) as (_, model):
        assert model.extended() == (0, 1)
        assert "AssertionError" in model.chat.decode(model.prompts[1][0])


def test_its_edits_are_trained_and_its_commit_messages_are_not(tmp_path):
    opening = {}

    def opened(url):
        asked = {"trace_id": new_id(), "model": "scripted", "side_names": ["side"]}
        opening.update(httpx.post(f"{url}/v1/run-passes", json=asked).raise_for_status().json())
        return opening["key"]

    recipe = replace(RECIPE, command=[*RECIPE.command, "--weak-model", "openai/side"])
    with played(tmp_path, recipe, opened) as (url, model):
        token = {"token": opening["token"]}
        ended = httpx.post(f"{url}/v1/run-passes/{opening['id']}/end", json=token, timeout=30)
        result = ended.raise_for_status().json()
    assert result["refusal"] is None
    trace = Trace(steps=[parse_step(step) for step in expand_samples(result["steps"])])
    datums = datums_of(payload_of(trace, 1.0))
    assert sum(datum.actions for datum in datums) == sum(len(out) for _, out in model.prompts)
    assert len(datums) == 2
    assert len(model.side_calls) > 0


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="scripts/setup-worlds")
async def test_aider_plays_a_run_in_its_workspace(tmp_path, monkeypatch):
    RECIPE.skip_unless_readable_by_all()
    monkeypatch.setenv("PATH", f"{AIDER.parent}:{Path('/usr/bin')}:/bin")
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HUD_PROGRAMS", "")
    work = tmp_path / "work"
    work.mkdir()
    (work / "total.py").write_text(WRONG)
    (work / "check.py").write_text(CHECK)
    env = Environment("repairs")
    shell = env.workspace(work)

    @env.template()
    async def repair():
        yield TASK
        yield float(await shell.read("total.py") == WRONG.replace("-", "+").encode())

    mended = [ScriptedTurn("It subtracts.", text=listing("a + b"))]
    with scripted_server(tmp_path / "platform", mended, EDITOR) as (url, model):
        monkeypatch.setenv("HUD_API_URL", url)
        agent = as_agent("aider", {"model": "scripted", "timeout_seconds": 120})
        run = await rollout(
            repair(), agent, runtime=lambda task: task.environment.run(), recorder=NullRecorder()
        )
    assert (run.reward, run.error) == (1.0, None)
    assert (run.trace.extra["program"]["place"], run.trace.extra["program"]["exit_code"]) == (
        "workspace",
        0,
    )
    sampled = [
        step.sample.output_token_ids for step in run.trace.steps if isinstance(step, AgentStep)
    ]
    assert all(ids in sampled for _, ids in model.prompts)
