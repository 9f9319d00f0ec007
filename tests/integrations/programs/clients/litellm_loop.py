"""LiteLLM's client, with a loop over its turns: `litellm_loop.py MODEL`."""

import json
import sys
from inspect import signature

import litellm
from task_tools import TASK, TOOLS

functions = {tool.__name__: tool for tool in TOOLS}
schemas = [
    {
        "type": "function",
        "function": {
            "name": tool.__name__,
            "parameters": {
                "type": "object",
                "properties": {name: {"type": "string"} for name in signature(tool).parameters},
            },
        },
    }
    for tool in TOOLS
]
messages = [{"role": "user", "content": TASK}]
while True:
    message = litellm.completion(sys.argv[1], messages, tools=schemas).choices[0].message
    messages.append(message)
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        result = functions[call.function.name](**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
print(message.content)
