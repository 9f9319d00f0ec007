"""An integer beyond 64 bits is the same integer in a row, a tool's call and result, the store and an export."""

import json
import textwrap

import pytest

import hud.client
from hud.agents import ScriptedAgent
from hud.eval import ForkRuntime, LocalRuntime, SubprocessRuntime, Taskset
from hud.trace import ToolCall
from hud.trace.trajectory_export import trajectory_line

N = 12345678901234567890123
ENVIRONMENT = """
    from hud import Environment

    env = Environment("numbers")

    @env.tool
    def square(n: int):
        return {"square": n * n}

    @env.template()
    async def check(n: int):
        answer = yield f"Square {n}."
        yield 1.0 if answer == str(n * n) else 0.0
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HUD_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HUD_API_URL", raising=False)
    yield tmp_path
    hud.client.disconnect(tmp_path / "home")


@pytest.mark.slow
@pytest.mark.parametrize("runtime", [LocalRuntime, ForkRuntime, SubprocessRuntime])
@pytest.mark.parametrize("suffix", ["json", "jsonl", "py"])
async def test_from_a_task_file_to_the_export(home, runtime, suffix):
    (home / "env.py").write_text(textwrap.dedent(ENVIRONMENT))
    row = {"env": "numbers", "id": "check", "slug": "a", "args": {"n": N}}
    code = f"from env import check\ntasks = [check(n={N})]\n"
    (home / f"tasks.{suffix}").write_text(code if suffix == "py" else json.dumps(row))
    tasks = Taskset.from_file(home / f"tasks.{suffix}")
    assert tasks[0].args == {"n": N}
    tasks.to_file(home / "copy.json")
    assert Taskset.from_file(home / "copy.json")[0].args == {"n": N}

    async def play(run):
        result = await run.call_tool(ToolCall(id="1", name="square", arguments={"n": N}))
        return str(result.structured_content["square"])

    job = await tasks.run(ScriptedAgent(play), runtime=runtime(home / "env.py"))
    (run,) = job.runs
    calls = [step.call.arguments for step in run.trace.steps if step.source == "tool"]
    assert (run.reward, calls) == (1.0, [{"n": N}])
    recorded = await hud.client.connect().get(f"/v2/trace/{run.trace_id}/full")
    assert recorded["run"]["task"]["args"] == {"n": N}
    line = trajectory_line(recorded["run"], recorded["trace"], None).decode()
    for shown in (json.dumps(recorded), line):
        assert str(N) in shown
        assert str(N * N) in shown
