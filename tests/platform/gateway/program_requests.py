"""Requests in the shape of those that agent programs send with their defaults, shortened."""

CLAUDE_CODE = {
    "max_tokens": 64,
    "stream": False,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332.a1b; cch=00000;"},
        {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Mend the test."}]},
        {"role": "system", "content": [{"type": "text", "text": "The folder is /project."}]},
    ],
    "tools": [
        {
            "name": "Read",
            "description": "Read a file.",
            "input_schema": {"type": "object", "properties": {"file_path": {"type": "string"}}},
        }
    ],
    "metadata": {"user_id": "user"},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
}
"""Claude Code 2.1.332."""

CODEX = {
    "instructions": "You are a coding agent.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "The sandbox is off."}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "The folder is /project."}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Mend the test."}],
        },
    ],
    "tools": [
        {
            "type": "function",
            "name": "exec_command",
            "description": "Run a command.",
            "strict": False,
            "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
        },
        {
            "type": "namespace",
            "name": "agents",
            "description": "Agents.",
            "tools": [
                {
                    "type": "function",
                    "name": "spawn",
                    "description": "Begin an agent.",
                    "strict": False,
                    "parameters": {"type": "object", "properties": {"task": {"type": "string"}}},
                }
            ],
        },
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Edit files.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
        },
        {"type": "local_shell"},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": None,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "session",
    "client_metadata": {"thread": "t"},
}
"""Codex 0.171.0."""

PYDANTIC_AI_GEMINI = {
    "contents": [{"role": "user", "parts": [{"text": "Mend the test."}]}],
    "tools": [{"functionDeclarations": [{"name": "look", "description": "Look."}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "VALIDATED"}},
}
"""pydantic-ai 2.68.0."""
