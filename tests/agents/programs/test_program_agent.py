"""Any program plays a run: it asks the run's model, uses the environment's tools and files, and its exit ends its part."""

import json
import shutil
from pathlib import Path

import pytest
from tests.platform.gateway.gateway_server import ScriptedEngine, make_platform, serving

from hud import Environment
from hud.agents.agent_forms import as_agent
from hud.environment.run import EnvironmentRun
from hud.errors import EnvironmentFault, UsageError
from hud.eval.rollouts import rollout
from hud.trace import AgentStep, ToolStep
from hud.trace.recording.recorder import NullRecorder
from hud_platform.gateway.chat_formats import format_of

PROGRAM = Path(__file__).parent / "fake_program.py"
ANSWER = "There are 7 apples."
sandboxed = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="there is no bubblewrap here: scripts/setup-worlds"
)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    app = make_platform(tmp_path_factory.mktemp("platform"))
    yield app
    app.state.parts.close()


@pytest.fixture(scope="module")
def url(app):
    with serving(app) as url:
        yield url


@pytest.fixture
def engine(app, url, monkeypatch, tmp_path):
    """A local model that always gives the same answer."""
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HUD_API_URL", url)
    monkeypatch.setenv("HUD_PROGRAMS", "")

    record = app.state.parts.registry.model("tiny")
    engine = ScriptedEngine(format_of(record.folder).chat.tokenizer, ANSWER, pieces=3)
    app.state.parts.__dict__["engine"] = engine
    return engine


def apples(workspace=False, tool=False):
    """Return a task: count the apples, and write it down where there is a workspace."""
    env = Environment("apples")
    shell = env.workspace() if workspace else None
    if tool:

        @env.tool
        async def look(at: int) -> str:
            """Look at a place."""
            return f"{at} apples"

    @env.template()
    async def count():
        answer = yield 'What is at 7? It\'s "there".'
        if shell is not None:
            answer = (await shell.read("found.txt")).decode()
        yield float("7 apples" in answer)

    return count()


async def play(task, command="", **config):
    return await played_by(
        "harness", task, command=f"/usr/bin/python3 {PROGRAM} {{prompt_file}} {command}", **config
    )


async def played_by(form, task, **config):
    return await rollout(
        task,
        as_agent(form, {"model": "tiny", **config}),
        runtime=lambda task: task.environment.run(),
        recorder=NullRecorder(),
    )


async def test_a_program_without_a_workspace_plays_in_a_fresh_folder(engine, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_USER", "1")
    run = await play(apples(), "--show-variables")
    assert run.error is None
    names = json.loads(run.trace.content)
    assert "SECRET_OF_THE_USER" not in names
    assert {"HOME", "PATH", "OPENAI_API_KEY"} <= set(names)
    program = run.trace.extra["program"]
    assert (program["place"], program["exit_code"]) == ("process", 0)
    assert program["stderr"].strip() == "It thought about that."
    assert run.trace.stop_reason == "done"
    (asked,) = engine.asked
    assert 'What is at 7? It\'s "there".' in engine.tokenizer.decode(asked[2].prompt, False)


async def test_its_output_is_the_answer_and_its_model_calls_are_the_runs_steps(engine):
    run = await play(apples())
    assert (run.reward, run.trace.content) == (1.0, ANSWER)
    (step,) = (step for step in run.trace.steps if isinstance(step, AgentStep))
    assert step.content == ANSWER
    assert engine.tokenizer.decode(step.sample.output_token_ids, True) == ANSWER


@sandboxed
async def test_a_program_plays_in_the_workspace_and_its_files_are_graded(engine):
    run = await play(apples(workspace=True), "--write {workspace}/found.txt")
    assert (run.reward, run.error) == (1.0, None)
    assert run.trace.extra["program"]["place"] == "workspace"


@pytest.mark.parametrize("workspace", [False, pytest.param(True, marks=sandboxed)])
async def test_tools_of_the_environment_are_called_over_mcp_and_recorded(engine, workspace):
    written = "--write {workspace}/found.txt"
    run = await play(apples(workspace, tool=True), f"--mcp {{mcp_config}} {written}")
    assert (run.reward, run.error, run.trace.content) == (1.0, None, "7 apples")
    (step,) = (step for step in run.trace.steps if isinstance(step, ToolStep))
    assert (step.call.name, step.call.arguments, step.result.text) == (
        "look",
        {"at": 7},
        "7 apples",
    )


async def test_a_program_that_fails_by_itself_is_graded_and_its_exit_is_recorded(engine):
    run = await play(apples(), "--exit 3")
    assert (run.reward, run.failure_kind) == (1.0, None)
    assert run.trace.extra["program"]["exit_code"] == 3
    (problem,) = (step.error for step in run.trace.steps if step.error)
    assert problem == "harness ended with exit code 3: It thought about that."


async def test_a_time_out_is_the_agents(engine):
    run = await play(apples(), "--sleep 60", timeout_seconds=0.5)
    assert (run.reward, run.failure_kind, run.trace.stop_reason) == (0.0, None, "timeout")


async def test_a_lost_environment_ends_the_program_and_is_not_the_agents(engine, monkeypatch):
    async def lost(self, name, arguments, *, timeout=None):
        raise EnvironmentFault("The trees are gone.")

    monkeypatch.setattr(EnvironmentRun, "call_tool", lost)
    run = await play(apples(tool=True), "--mcp {mcp_config} --sleep-after 60")
    assert (run.reward, run.failure_kind, run.error) == (None, "environment", "The trees are gone.")


async def test_tools_that_a_command_does_not_name_are_refused(engine):
    with pytest.raises(
        UsageError, match="gets no tools of an environment, and this one has 'look'"
    ):
        await play(apples(tool=True))


async def test_a_program_that_is_not_installed_is_refused_before_any_run(engine, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    agent = as_agent("codex", {"model": "tiny"})
    with pytest.raises(UsageError, match="no program 'codex'.*npm install -g @openai/codex"):
        await agent.prepare()


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"command": "true", "model": ""}, "needs --model"),
        ({"command": "true", "model": "http://127.0.0.1:1/v1"}, "hud models add"),
        ({"command": "true", "model": "tinny"}, "tiny"),
        ({"command": "true", "mounts": ["/nowhere"]}, "does not exist"),
        ({"command": "'"}, "no command line"),
        ({}, "command"),
        ({"command": "true", "system_prompt": "Be brief."}, "its own tool loop"),
    ],
)
async def test_wrong_settings_are_refused_before_any_run(engine, config, problem):
    with pytest.raises(UsageError, match=problem):
        await as_agent("harness", {"model": "tiny", **config}).prepare()
