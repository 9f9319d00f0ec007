"""Every kind of agent plays a model of ours through our own gateway, each in its provider's dialect."""

from __future__ import annotations

import pytest
from tests.platform.gateway.gateway_server import ScriptedEngine, make_platform, serving

from hud.agents.agent_kinds import agent_of, settings_of
from hud.agents.providers.agent_kind import model_kinds
from hud.environment import Environment
from hud.eval.rollouts import rollout
from hud.trace import ToolStep
from hud.trace.recording.recorder import NullRecorder

FIRST = '<think>I have to look.</think>Looking.<tool_call>{"name": "look", "arguments": {"at": 7}}</tool_call>'
SECOND = "There are 7 apples."


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    app = make_platform(tmp_path_factory.mktemp("home"))
    yield app
    app.state.parts.close()


@pytest.fixture(scope="module")
def url(app):
    with serving(app) as url:
        yield url


@pytest.fixture
def engine(app):
    from hud_platform.gateway.chat_formats import format_of

    record = app.state.parts.registry.model("tiny")
    engine = ScriptedEngine(format_of(record.folder).chat.tokenizer, FIRST, SECOND, pieces=3)
    app.state.parts.__dict__["engine"] = engine
    return engine


@pytest.fixture
def task():
    env = Environment("apples")

    @env.tool
    async def look(at: int) -> str:
        """Look at a place."""
        return f"{at} apples"

    @env.template()
    async def count():
        """Count apples."""
        answer = yield "What is at 7?"
        yield float(answer == SECOND)

    return count()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", list(model_kinds()))
async def test_a_task_with_a_tool(kind, stream, task, engine, url, monkeypatch, tmp_path):
    monkeypatch.setenv("HUD_HOME", str(tmp_path))
    monkeypatch.setenv("HUD_API_URL", url)
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "GOOGLE"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
    settings = settings_of(
        kind, {"model": "tiny", "stream": stream, "system_prompt": "Be brief."}, whose="test"
    )
    agent = agent_of(kind, settings)
    try:
        run = await rollout(
            task, agent, runtime=lambda task: task.environment.run(), recorder=NullRecorder()
        )
    finally:
        await agent.aclose()
    assert (run.reward, run.error, run.trace.stop_reason) == (1.0, None, "done")
    first, second = (step for step in run.trace.steps if step.source == "agent")
    assert (first.content, first.finish_reason) == ("Looking.", "tool_calls")
    assert first.reasoning is None or "I have to look." in first.reasoning
    assert (second.content, second.done) == (SECOND, True)
    (tool,) = (step for step in run.trace.steps if isinstance(step, ToolStep))
    assert (tool.call.arguments, tool.result.text) == ({"at": 7}, "7 apples")
    assert run.trace.usage.prompt_tokens > 0
    assert run.trace.usage.completion_tokens > 0
    asked = [engine.tokenizer.decode(one[2].prompt, False) for one in engine.asked]
    assert asked[0].startswith("<|system|>Be brief.")
    assert "<|tool|>7 apples<|end|>" in asked[1]
