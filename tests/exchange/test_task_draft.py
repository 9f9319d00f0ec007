"""A failed run of production becomes the draft of a task, which a person completes."""

import asyncio
import json

from tests.exchange.test_message_logs import ASK, CALLING, RESULT, call, written

from hud import Taskset
from hud.agents import ScriptedAgent
from hud.cli.main import run
from hud.trace import ToolCall


def test_a_draft_replays_the_tools_of_its_run_and_waits_for_its_reward(
    tmp_path, imported, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    log = [
        call("a", [ASK], CALLING),
        call("b", [ASK, CALLING, RESULT], {"role": "assistant", "content": "It costs 4."}),
    ]
    (full,) = imported(written(tmp_path / "log.jsonl", log))
    trace = full["run"]["trace_id"]
    assert run(["tasks", "from-trace", trace[:12], "-o", "draft"]) == 0
    assert "Complete the reward in draft/env.py" in capsys.readouterr().out
    assert run(["tasks", "from-trace", trace, "-o", "draft"]) == 2
    assert "exists" in capsys.readouterr().err
    recorded = json.loads((tmp_path / "draft" / "recorded.json").read_text())
    assert (recorded["answer"], len(recorded["calls"])) == ("It costs 4.", 1)

    async def agent(run):
        result = await run.call_tool(ToolCall(name="price", arguments={"item": "tea"}))
        return result.text

    (task,) = Taskset.from_file(tmp_path / "draft" / "env.py")
    draft = asyncio.run(task.run(ScriptedAgent(agent))).runs[0]
    assert draft.prompt[0].text == "What does tea cost?"
    assert draft.failure_kind == "grader"
    assert "This task is a draft" in draft.error
    task.args["expected"] = "3"
    assert asyncio.run(task.run(ScriptedAgent(agent))).runs[0].reward == 1.0
