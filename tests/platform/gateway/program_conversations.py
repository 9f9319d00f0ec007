"""Conversations as agent programs send them: the first request, and the next one after an answer and its tool's result."""

import json
from dataclasses import dataclass, field
from typing import ClassVar

PATH = {"type": "object", "properties": {"path": {"type": "string"}}}
EDIT = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "replace_all": {"type": "boolean", "default": False},
    },
}
TASK = "Mend total.py."


@dataclass
class MessagesProgram:
    """Claude Code 2.1.332: keeps thoughts with their signatures, and puts a default first into the arguments of Edit."""

    path = "/v1/messages?beta=true"
    session: ClassVar = {"x-claude-code-session-id": "s1", "x-claude-code-agent-id": "a1"}
    body: dict = field(
        default_factory=lambda: {
            "max_tokens": 32000,
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332.a1b;"},
                {"type": "text", "text": "You are a coding agent."},
            ],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": TASK}]},
                {"role": "system", "content": [{"type": "text", "text": "The folder is /p."}]},
            ],
            "tools": [{"name": "edit", "description": "Edit.", "input_schema": EDIT}],
        }
    )

    def go_on(self, answer):
        blocks = [dict(block) for block in answer["content"]]
        (call,) = [block for block in blocks if block["type"] == "tool_use"]
        call["input"] = {"replace_all": False, **call["input"]}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "done"}
        self.body["messages"] += [
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [result]},
        ]


@dataclass
class ChatProgram:
    """The chat clients of openai-agents 0.24.0 and LangGraph 1.2.24: drop thoughts, and write arguments anew."""

    path = "/v1/chat/completions"
    session: ClassVar = {"x-session-id": "s1"}
    body: dict = field(
        default_factory=lambda: {
            "messages": [
                {"role": "system", "content": "You are an agent."},
                {"role": "user", "content": TASK},
            ],
            "tools": [{"type": "function", "function": {"name": "edit", "parameters": EDIT}}],
        }
    )

    def go_on(self, answer):
        message = answer["choices"][0]["message"]
        (call,) = message["tool_calls"]
        arguments = json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":"))
        function = {"name": call["function"]["name"], "arguments": arguments}
        sent = {"id": call["id"], "type": "function", "function": function}
        self.body["messages"] += [
            {"role": "assistant", "content": message.get("content"), "tool_calls": [sent]},
            {"role": "tool", "tool_call_id": call["id"], "content": "done"},
        ]


@dataclass
class ResponsesProgram:
    """Codex 0.171.0: sends reasoning back by its encrypted content."""

    path = "/v1/responses"
    session: ClassVar = {"session-id": "s1", "x-codex-turn-metadata": '{"agent_name": "/root"}'}
    body: dict = field(
        default_factory=lambda: {
            "instructions": "You are a coding agent.",
            "input": [
                {"role": "developer", "content": [{"type": "input_text", "text": "No sandbox."}]},
                {"role": "user", "content": [{"type": "input_text", "text": TASK}]},
            ],
            "tools": [{"type": "function", "name": "edit", "strict": False, "parameters": EDIT}],
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
    )

    def go_on(self, answer):
        items = [
            {**item, "content": None} if item["type"] == "reasoning" else item
            for item in answer["output"]
        ]
        output = {
            "type": "function_call_output",
            "call_id": items[-1]["call_id"],
            "output": "done",
        }
        self.body["input"] += [*items, output]


@dataclass
class GeminiProgram:
    """Gemini CLI 0.61.0: drops thoughts and the ids of calls, and keeps signatures."""

    path = "/v1beta/models/scripted:generateContent"
    session: ClassVar = {}
    body: dict = field(
        default_factory=lambda: {
            "systemInstruction": {"role": "user", "parts": [{"text": "You are an agent."}]},
            "contents": [{"role": "user", "parts": [{"text": TASK}]}],
            "tools": [{"functionDeclarations": [{"name": "edit", "parameters": PATH}]}],
            "generationConfig": {"temperature": 1, "topP": 0.95, "topK": 64},
        }
    )

    def go_on(self, answer):
        parts = answer["candidates"][0]["content"]["parts"]
        shown = [part for part in parts if not part.get("thought")]
        for part in shown:
            if "functionCall" in part:
                part["functionCall"] = {
                    name: value for name, value in part["functionCall"].items() if name != "id"
                }
        result = {"functionResponse": {"name": "edit", "response": {"output": "done"}}}
        self.body["contents"] += [
            {"role": "model", "parts": shown},
            {"role": "user", "parts": [result]},
        ]


PROGRAMS = [MessagesProgram, ChatProgram, ResponsesProgram, GeminiProgram]
