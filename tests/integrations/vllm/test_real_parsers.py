"""Our parsers of tool calls and of reasoning against the real vLLM's of the same names."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.engine.template_folders import PUBLISHED, template_folder
from tests.engine.test_toolcalls import CALL, WITH_CALLS, offered, read, whole, written
from tests.integrations.vllm.real_vllm import ABSENT, PYTHON

from hud.engine.chat.tool_calls.formats import FORMATS, format_named

SCRIPT = Path(__file__).parent / "parse_with_vllm.py"
OURS = {"json", "qwen", "qwen25", "llama3", "deepseekv3", "deepseekv31", "glm", "gpt-oss"}
"""Names of formats that are ours or SGLang's."""
READ_OTHERWISE = {
    "llama3.2": "vLLM wants Llama 3.1's <|python_tag|> among the tokens",
    "llama3.2-pythonic": "its template writes texts without quotes, which vLLM takes for no call",
    "llama4-pythonic": "its template writes numbers in quotes, which ours types by the schema",
    "mistral-small-3.2": "vLLM reads [CALL_ID] with Mistral's own tokenizer only",
    "gpt-oss": "vLLM parses harmony from token ids, apart from its tool parsers",
}
COMPARED = [name for name in WITH_CALLS if name not in READ_OTHERWISE]
REASONING = {
    "qwen3": "qwen3",
    "qwen3.5": "qwen3",
    "glm-4.6": "glm45",
    "deepseek-v3.1": "deepseek_r1",
    "ministral-3": "mistral",
}
"""Published templates, and vLLM's reasoning parsers of their models."""
THOUGHT = "<think>hm, 3</think>The answer is 3."


def thought(name):
    """Return a turn with reasoning, in the marks of a template's model."""
    if PUBLISHED[name].format != "mistral":
        return THOUGHT
    return THOUGHT.replace("<think>", "[THINK]").replace("</think>", "[/THINK]")


@pytest.fixture(scope="module")
def vllm():
    """Return vLLM's names, and what its parsers make of every turn."""
    if PYTHON is None:
        pytest.skip(ABSENT)
    turns = {}
    for name in COMPARED:
        functions = [
            tool.model_dump(include={"name", "description", "parameters"}) for tool in offered(name)
        ]
        turns["calls", name] = {
            "tool_parser": PUBLISHED[name].format,
            "text": written(name, [CALL])[1],
            "tools": [{"type": "function", "function": function} for function in functions],
        }
    for name, parser in REASONING.items():
        turns["reasoning", name] = {
            "reasoning_parser": parser,
            "text": thought(name),
            "tools": None,
        }
    for (_, name), turn in turns.items():
        turn["folder"] = str(template_folder(name))
    done = subprocess.run(
        [PYTHON, SCRIPT],
        input=json.dumps({"turns": list(turns.values())}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    return {**answer, "turns": dict(zip(turns, answer["turns"], strict=True))}


def test_every_name_of_a_tool_parser_is_vllms(vllm):
    names = {name for format in FORMATS for name in format.names}
    assert names - OURS <= set(vllm["tool_parsers"])
    assert names >= OURS
    assert OURS.isdisjoint(vllm["tool_parsers"])


@pytest.mark.parametrize("name", COMPARED)
def test_a_call_is_read_as_vllms_parser_of_the_name_reads_it(vllm, name):
    prompt, turn = written(name, [CALL])
    _, calls = read(name, prompt, turn)
    answer = vllm["turns"]["calls", name]
    assert answer.get("calls") == [list(call) for call in calls], answer


@pytest.mark.parametrize("name", REASONING)
def test_reasoning_is_taken_apart_as_vllms_parser_does(vllm, name):
    content, reasoning, *_ = whole(format_named(PUBLISHED[name].format), thought(name))
    answer = vllm["turns"]["reasoning", name]
    assert answer == {"reasoning": reasoning, "content": content}
