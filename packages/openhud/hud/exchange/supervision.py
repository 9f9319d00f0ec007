"""A recorded run as a conversation, and the names under which it keeps what supervised training needs beyond its messages."""

from __future__ import annotations

from hud.agents.chat_messages import opening_messages, tool_message
from hud.trace import AgentStep, ChatMessage, Step, ToolStep, Trace

TOOL_SPECS = "tool_specs"
"""In a run's `extra`: the tools of its prompts, as dumps of `ToolSpec`, where no environment defines them."""
PAIR = "pair"
"""In a run's `extra`: the pair of a better and a worse run that it is one of, where a data set has it as one row."""
WEIGHT = "weight"
"""In a turn's `extra`, and in an assistant's message: 0 for a turn that is context, and not trained on."""


def conversation_of(trace: Trace) -> list[ChatMessage]:
    """Return a run as chat messages: the prompt, the assistant's turns, tool results and the final answer.

    Calls and answers without a recorded turn become assistant turns, too: a script that plays a whole run records no
    turns. A turn that is context alone has the weight 0.
    """
    messages: list[ChatMessage] = []
    call_ids: set[str] = set()
    for step in trace.steps:
        if isinstance(step, AgentStep):
            call_ids |= {call.id for call in step.tool_calls}
            message: ChatMessage = {"role": "assistant", "content": step.content}
            if step.extra.get(WEIGHT) == 0:
                message[WEIGHT] = 0
            if step.reasoning:
                message["reasoning_content"] = step.reasoning
            if step.tool_calls:
                message["tool_calls"] = [call.message() for call in step.tool_calls]
            messages.append(message)
        elif isinstance(step, ToolStep):
            if step.call is not None and step.result is not None:
                if step.call.id not in call_ids:
                    call = step.call.message()
                    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
                messages.append(tool_message(step.call, step.result))
        elif type(step) is Step and step.source == "user":
            messages += opening_messages(step.messages, None)
    turns = [step.content for step in trace.steps if isinstance(step, AgentStep)]
    if trace.content and trace.content not in turns:
        messages.append({"role": "assistant", "content": trace.content})
    # Messages after the last assistant turn are omitted.
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages
