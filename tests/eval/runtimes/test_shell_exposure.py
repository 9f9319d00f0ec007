"""What a tool's shell gets of the process that started it, and what is said of shells outside workspaces."""

import os
import subprocess
import sys

import pytest

from hud.environment import Environment, load_environment
from hud.environment.processes.secret_variables import is_secret
from hud.eval import ForkRuntime, SubprocessRuntime
from hud.eval.rollouts import rollout
from hud.eval.runtimes.host_shells import shells_outside
from hud.trace import ToolCall
from hud.trace.recording.recorder import NullRecorder

SOURCE = """
import asyncio, os, subprocess
from hud import Environment

env = Environment("tools")

@env.tool
async def bash(command: str) -> str:
    process = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    return out.decode() + subprocess.run(command, shell=True, capture_output=True, text=True).stdout

@env.tool
async def judge() -> str:
    return os.environ["OPENAI_API_KEY"]

@env.tool
async def told() -> str:
    return subprocess.run("env", capture_output=True, text=True, env=dict(os.environ)).stdout

@env.template()
async def task():
    yield "Work."
    yield 1.0
"""
SECRETS = {
    "OPENAI_API_KEY": "sk-hidden-1",
    "HUD_API_KEY": "hidden-2",
    "GITHUB_TOKEN": "hidden-3",
    "AWS_SECRET_ACCESS_KEY": "hidden-4",
    "PGPASSWORD": "hidden-5",
    "SITE_URL": "postgresql://me:hidden-6@127.0.0.1/store",
}


@pytest.fixture
def source(tmp_path, monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PLAIN", "shown")
    path = tmp_path / "env.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ForkRuntime, SubprocessRuntime])
async def test_a_tools_shell_inherits_no_secret(source, kind):
    heard = {}

    async def agent(run):
        for name, arguments in (("bash", {"command": "env"}), ("judge", {}), ("told", {})):
            heard[name] = (
                await run.call_tool(ToolCall(id="1", name=name, arguments=arguments))
            ).text
        run.trace.content = "done"

    runtime = kind(source)
    tasks = load_environment(source).templates["task"]
    run = await rollout(tasks(), agent, runtime=runtime, recorder=NullRecorder())
    if hasattr(runtime, "aclose"):
        await runtime.aclose()
    assert run.error is None
    assert heard["bash"].count("PLAIN=shown") == 2
    assert "hidden" not in heard["bash"]
    assert heard["judge"] == "sk-hidden-1"  # The environment's own code has it.
    assert all(
        value in heard["told"] for value in SECRETS.values()
    )  # And hands it on, where it says so.


@pytest.mark.parametrize(
    "name",
    [
        "HOME",
        "PATH",
        "KEYBOARD",
        "MONKEY",
        "XAUTHORITY",
        "DISPLAY",
        "LANG",
        "PYTHONPATH",
        "HUD_HOME",
        "TOKENIZERS_PARALLELISM",
    ],
)
def test_what_programs_need_is_no_secret(name):
    assert is_secret(name, "https://example.org/a:b@c") is False


def test_shells_outside_a_workspace_are_named():
    outside, inside = Environment("outside"), Environment("inside")
    inside.workspace()
    for env in (outside, inside):
        for name in (
            "bash",
            "run_command",
            "python",
            "crash",
            "publish",
            "pushed",
            "shellfish_price",
        ):

            async def tool(command: str) -> str:
                return command

            env.tool(name=name)(tool)

        @env.template(id=f"{env.name}-task")
        async def task():
            yield "Work."
            yield 1.0

    tasks = [env.templates[f"{env.name}-task"]() for env in (outside, inside)]
    assert shells_outside(tasks) == {"outside": ["bash", "run_command", "python"]}


@pytest.mark.slow
def test_hud_eval_says_so(source, tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text("def play(run):\n    return 'done'\n")
    command = [sys.executable, "-m", "hud.cli.main", "eval", str(source), f"{agent}:play"]
    environment = {**os.environ, "HUD_HOME": str(tmp_path / "home"), "HUD_API_KEY": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "bash of environment 'tools' executes on this machine, as your user" in done.stderr
    assert "env.workspace()" in done.stderr
