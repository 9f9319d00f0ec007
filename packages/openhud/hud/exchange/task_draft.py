"""Drafts of tasks from recorded runs: the prompt, the tools with their recorded results, and a reward for a person to write."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hud import exact_json
from hud.errors import UsageError
from hud.trace.steps import ToolStep, Trace, parse_trace

_ENVIRONMENT = '''"""Draft of a task from the run TRACE: complete `expected` and the reward, then delete this line."""

import json
from pathlib import Path

from hud import Environment
from hud.graders import exact_match

env = Environment("NAME")
RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())


def replayed(name, arguments):
    """Return the recorded result of a call; the state of the system was not recorded."""
    for call in RECORDED["calls"]:
        if call["name"] == name and call["arguments"] == arguments:
            return call["result"]
    raise ValueError(f"No call of {name} with these arguments was recorded; write the tool.")

TOOLS
@env.template()
async def case(expected: str | None = None):
    answer = yield RECORDED["prompt"]
    if expected is None:
        raise ValueError("This task is a draft: set `expected`, or write its reward in env.py.")
    yield exact_match(answer, expected)


tasks = [case()]  # expected=: what the run should have answered. Recorded: RECORDED["answer"].
tasks[0].slug = "SLUG"
'''
_TOOL = '''
@env.tool(name="NAME")
async def FUNCTION(PARAMETERS):
    """Replay the recorded results of NAME."""
    return replayed("NAME", VALUES)

'''


def task_draft(run: Mapping[str, Any], trace: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of a draft by name, from a run's record and its trace as the platform returns them.

    Raises `UsageError` for a run without a prompt.
    """
    parsed = parse_trace(dict(trace))
    prompt = next((step for step in parsed.steps if step.source == "user"), None)
    if prompt is None:
        raise UsageError("This run has no prompt, of which a task could be drafted.")
    calls = _calls(parsed)
    slug = _identifier(str(run["slug"] or "case"))
    tools = "".join(_tool(name, calls) for name in sorted({call["name"] for call in calls}))
    environment = (
        _ENVIRONMENT.replace("TOOLS", tools)
        .replace("TRACE", str(run["trace_id"]))
        .replace("NAME", slug)
        .replace("SLUG", f"{slug}-{str(run['trace_id'])[:8]}")
    )
    recorded = {
        "trace_id": run["trace_id"],
        "prompt": [message.model_dump(mode="json", by_alias=True) for message in prompt.messages],
        "calls": calls,
        "answer": run["content"],
        "reward": run["reward"],
        "error": run["error"],
    }
    packed = exact_json.dumps(recorded, option=exact_json.OPT_INDENT_2).decode()
    return {"env.py": environment, "recorded.json": f"{packed}\n"}


def _calls(trace: Trace) -> list[dict[str, Any]]:
    """Return the calls of a run with their results, in order."""
    return [
        {"name": step.call.name, "arguments": step.call.arguments, "result": step.result.text}
        for step in trace.steps
        if isinstance(step, ToolStep)
        and step.call is not None
        and step.result is not None
        and isinstance(step.call.arguments, dict)
    ]


def _tool(name: str, calls: list[dict[str, Any]]) -> str:
    """Return the source of a tool that replays its recorded results."""
    own = [call["arguments"] for call in calls if call["name"] == name]
    names = sorted({key for call_arguments in own for key in call_arguments if key.isidentifier()})
    always = [key for key in names if all(key in call_arguments for call_arguments in own)]
    optional = [key for key in names if key not in always]
    values = ", ".join(f'"{key}": {key}' for key in names)
    arguments = f"{{{values}}}"
    if optional:
        arguments = f"{{key: value for key, value in {arguments}.items() if value is not None}}"
    parameters = [*always, *(f"{key}=None" for key in optional)]
    return (
        _TOOL.replace("PARAMETERS", ", ".join(parameters))
        .replace("FUNCTION", _identifier(name))
        .replace("VALUES", arguments)
        .replace("NAME", name.replace('"', ""))
    )


def _identifier(text: str) -> str:
    """Return a text as a name of Python."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_").lower()[:40]
    return name if name[:1].isalpha() else f"case_{name}".rstrip("_")
