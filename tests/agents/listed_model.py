"""A model that plays completions from a list, and a run of the tool loop with it."""

import asyncio

from hud.agents import create_agent
from hud.eval.rollouts import rollout
from hud.trace import Completion, ToolCall
from hud.trace.chat_model import ChatModel
from hud.trace.recording.recorder import NullRecorder


class Model(ChatModel):
    """Plays completions from a list, and remembers what it was asked."""

    name = "listed"

    def __init__(self, *turns: Completion):
        self.turns = list(turns)
        self.asked = []

    async def complete(self, messages, tools, params, *, continuation=None, trace_id=None):
        self.asked.append((list(messages), tools, params, continuation, trace_id))
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        if isinstance(turn, float):
            await asyncio.sleep(turn)
            return Completion(content="late")
        return turn


def say(text, **more):
    return Completion(content=text, **more)


def call(*names, **more):
    calls = [ToolCall(id=f"c{index}", name=name) for index, name in enumerate(names)]
    return Completion(tool_calls=calls, finish_reason="tool_calls", **more)


async def play(task, model, **config):
    agent = create_agent(model, **config)
    return await rollout(
        task, agent, runtime=lambda task: task.environment.run(), recorder=NullRecorder()
    )
