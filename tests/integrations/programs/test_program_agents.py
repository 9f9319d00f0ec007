"""Real programs play runs of `hud eval`: in the run's workspace, with the environment's tools, against a scripted local model."""

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("minisweagent", reason="scripts/setup-integration programs")

from tests.integrations.programs.mended_file import CHECK, WRONG
from tests.integrations.programs.recipes import BIN, DONE, NPM, RECIPES, TASK
from tests.platform.gateway.scripted_server import ScriptedTurn, scripted_server

from hud import Environment
from hud.agents.agent_forms import as_agent
from hud.eval.rollouts import rollout
from hud.trace import AgentStep, ToolStep
from hud.trace.recording.recorder import NullRecorder

TOOLS = {
    "claude-code": "mcp__environment__look",
    "codex": "mcp__environment__look",
    "gemini-cli": "mcp_environment_look",
    "opencode": "environment_look",
    "qwen-code": "mcp__environment__look",
}
"""Name of the environment's tool in each program."""


@pytest.fixture(autouse=True)
def installed(monkeypatch, tmp_path):
    path = os.pathsep.join([str(NPM), str(BIN), os.environ["PATH"]])
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HUD_PROGRAMS", "")


async def play(name, task, turns, tmp_path, monkeypatch):
    recipe = RECIPES[name]
    recipe.skip_unless_installed()
    with scripted_server(tmp_path / "platform", turns, recipe.mark) as (url, model):
        monkeypatch.setenv("HUD_API_URL", url)
        agent = as_agent(name, {"model": "scripted", "timeout_seconds": 120})
        run = await rollout(
            task, agent, runtime=lambda task: task.environment.run(), recorder=NullRecorder()
        )
    return run, model


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["mini-swe-agent", *TOOLS])
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="scripts/setup-worlds")
async def test_a_program_mends_a_file_in_the_workspace(name, tmp_path, monkeypatch):
    RECIPES[name].skip_unless_installed()
    RECIPES[name].skip_unless_readable_by_all()
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

    run, model = await play(
        name, repair(), RECIPES[name].turns(Path("/workspace")), tmp_path, monkeypatch
    )
    assert (run.reward, run.error) == (1.0, None)
    assert RECIPES[name].says in run.trace.content or name == "mini-swe-agent"
    program = run.trace.extra["program"]
    assert (program["place"], program["exit_code"]) == ("workspace", 0)
    assert program["version"] or name == "mini-swe-agent"
    assert model.extended() == (RECIPES[name].extends_in_a_run, 3)
    steps = [step for step in run.trace.steps if isinstance(step, AgentStep)]
    assert len(steps) >= len(model.prompts)
    if name != "gemini-cli":  # Its own sampling truncates the distribution.
        sampled = [step.sample.output_token_ids for step in steps]
        assert all(ids in sampled for _, ids in model.prompts)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", TOOLS)
async def test_a_program_calls_the_environments_tools(name, tmp_path, monkeypatch):
    env = Environment("apples")

    @env.tool
    async def look(at: int) -> str:
        """Look at a place."""
        return f"{at} apples"

    @env.template()
    async def count():
        answer = yield TASK
        yield float("It passed" in answer or "passes" in answer)

    turns = [ScriptedTurn("I look.", tool=TOOLS[name], arguments={"at": 7}), DONE]
    run, _ = await play(name, count(), turns, tmp_path, monkeypatch)
    calls = [step for step in run.trace.steps if isinstance(step, ToolStep)]
    # As the environment executed it, and as the program reported it to its model.
    assert [step.call.name for step in calls] == ["look", TOOLS[name]]
    assert calls[0].result.text == "7 apples"
    assert (run.reward, run.error) == (1.0, None)
