"""A caller and a speaker, small enough for policies of a few thousand weights, for the tests of training subagents."""

from hud.environment import AgentTool, Environment, Task
from hud.eval import Taskset

speaker = Environment("speaker")
caller = Environment("caller")


@speaker.template(description="Say a word.")
async def say(word: str, wanted: str | None = None):
    answer = yield f"say {word}"
    yield min(1.0, len(answer) / 20 + (wanted == word) / 100)


caller.add_tool(AgentTool(say, model="child", name="ask", from_task={"wanted": "word"}))


@caller.template()
async def relay(word: str):
    answer = yield f"relay {word}"
    asked = [step.subagent for step in answer.trace.steps if step.source == "subagent"]
    # A speaker that has learned nothing says something else every time, so that groups have spread.
    heard = sum(len(one.content or "") for one in asked)
    yield min(1.0, bool(asked) / 2 + len(answer) / 100 + heard / 100)


WORDS = ["red", "blue", "green"]
calls = Taskset("calls", [relay(word=word) for word in WORDS])
sayings = Taskset("sayings", [say(word=word) for word in WORDS])
tasks: list[Task] = list(calls)
