"""Parse turns by vLLM's own parsers; runs under the Python that has vLLM, which has no openhud.

    PYTHON parse_with_vllm.py <turns.json >parsed.json

A turn has `tool_parser` or `reasoning_parser`, `folder` (of the tokenizer), `text` and `tools`.
"""

import json
import sys
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import (
    ChatCompletionRequest,
)
from vllm.reasoning import ReasoningParserManager
from vllm.tokenizers import get_tokenizer
from vllm.tool_parsers import ToolParserManager


def parsed(turn: dict[str, Any]) -> dict[str, Any]:
    """Return the calls and the remaining text of a turn, or its reasoning and content."""
    tokenizer = get_tokenizer(turn["folder"])
    request = ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "Go."}], tools=turn["tools"]
    )
    if "reasoning_parser" in turn:
        parser = ReasoningParserManager.get_reasoning_parser(turn["reasoning_parser"])(tokenizer)
        reasoning, content = parser.extract_reasoning(turn["text"], request)
        return {"reasoning": reasoning, "content": content}
    parser = ToolParserManager.get_tool_parser(turn["tool_parser"])(tokenizer, request.tools)
    extracted = parser.extract_tool_calls(turn["text"], request)
    calls = [
        [call.function.name, json.loads(call.function.arguments)] for call in extracted.tool_calls
    ]
    return {"calls": calls, "content": extracted.content}


def main() -> None:
    """Read turns, and write what vLLM makes of each; of one that it fails at, the error."""
    batch = json.load(sys.stdin)
    turns = []
    for turn in batch["turns"]:
        try:
            turns.append(parsed(turn))
        except Exception as error:
            turns.append({"error": f"{type(error).__name__}: {error}"})
    names = {
        "tool_parsers": ToolParserManager.list_registered(),
        "reasoning_parsers": ReasoningParserManager.list_registered(),
    }
    print(json.dumps({"turns": turns, **names}), file=sys.__stdout__)


if __name__ == "__main__":
    main()
