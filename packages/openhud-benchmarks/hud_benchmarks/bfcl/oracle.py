"""The agent that makes the calls of the package's solution."""

from __future__ import annotations

import ast
from typing import Any

from hud.agents import ScriptedAgent
from hud.trace import ToolCall
from hud_benchmarks.bfcl.dialogues import Dialogue, dialogue, functions
from hud_benchmarks.bfcl.environment import REPLY


async def _play(run: Any) -> None:
    solved = dialogue(run.task.args["entry"])
    for turn, calls in enumerate(solved.solution):
        for place, source in enumerate(calls):
            await run.call_tool(_tool_call(f"call_{turn}_{place}", source, solved))
        reply = {"message": "Done."}
        await run.call_tool(ToolCall(id=f"reply_{turn}", name=REPLY.name, arguments=reply))


def _tool_call(call_id: str, source: str, solved: Dialogue) -> ToolCall:
    """Return a call that is written as Python, `sort('a.txt')`, as a tool call; its arguments are literals."""
    call = ast.parse(source, mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    name = call.func.id
    spec = next(functions(api)[name] for api in solved.apis if name in functions(api))
    values = dict(zip(spec.parameters["properties"], call.args, strict=False))
    values |= {keyword.arg: keyword.value for keyword in call.keywords}
    arguments = {key: ast.literal_eval(value) for key, value in values.items()}
    return ToolCall(id=call_id, name=name, arguments=arguments)


oracle = ScriptedAgent(_play, name="oracle")
