"""Runs of four turns under a published template: into how many samples they split, and what that costs.

`python -m tests.engine.splitting` prints the table of docs/chat-formats.md.
"""

from tests.engine.published import PUBLISHED, published_format

from hud.errors import UsageError
from hud.trace import Continuation, ToolSpec

TURNS = 4
KINDS = {
    "tools": "tool turns",
    "tools, thinking": "tool turns, thinking",
    "users": "user turns",
    "users, thinking": "user turns, thinking",
}
LOOK = ToolSpec(
    name="look",
    description="Look at an item.",
    parameters={"type": "object", "properties": {"at": {"type": "integer"}}},
)
RESULT = "There are three apples at this place, and nothing else that could be told apart. " * 8
THOUGHT = "The next place to look at is the one behind it, which was not looked at before. " * 4


def turn(number, kind):
    """Return a turn of the assistant, and the message that it is answered with."""
    said = {"role": "assistant", "content": f"Item {number}."}
    if kind.endswith("thinking"):
        said["reasoning_content"] = THOUGHT
    if kind.startswith("users"):
        return [said, {"role": "user", "content": f"{number}: {RESULT}"}]
    function = {"name": "look", "arguments": f'{{"at": {number}}}'}
    said |= {
        "content": "",
        "tool_calls": [{"id": f"abcdefgh{number}", "type": "function", "function": function}],
    }
    return [said, {"role": "tool", "tool_call_id": f"abcdefgh{number}", "content": RESULT}]


def samples(name, kind):
    """Return the lengths of the samples of a run, None where the template refuses the conversation."""
    chat = published_format(name)
    tools = [LOOK]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many apples are there?"},
    ]
    lengths, continuation = [], None
    for number in range(TURNS):
        try:
            prompt = chat.render(messages, tools)
        except UsageError:
            return None
        extended = None
        if continuation is not None:
            extended = chat.extend(continuation, messages, tools)
            assert extended is None or extended[: len(continuation.token_ids)] == (
                continuation.token_ids
            )
        said, answer = turn(number, kind)
        spoken = said.get("reasoning_content", "") + said["content"] + "look" * 8
        ids = [*(extended or prompt), *chat.encode(spoken), stop_of(chat, name, kind)]
        lengths[-1 if extended else len(lengths) :] = [len(ids)]
        messages += [said, answer]
        continuation = Continuation(ids, len(messages) - 2)
    return lengths


def stop_of(chat, name, kind):
    """Return the token that a model ends such a turn with."""
    ends = {
        "glm-4.6": {"tools": "<|observation|>", "users": "<|user|>"},
        "gpt-oss": {"tools": "<|call|>", "users": "<|return|>"},
    }
    text = ends.get(name, {}).get(kind.split(",")[0])
    return chat.end_id if text is None else chat.tokenizer.token_to_id(text)


def cell(name, kind):
    """Return how many samples a run is, and how many times the tokens of one sample that are."""
    lengths = samples(name, kind)
    if lengths is None:
        return "refused"
    return "1" if len(lengths) == 1 else f"{len(lengths)} ({sum(lengths) / lengths[-1]:.1f}×)"


def table():
    lines = [f"| template | {' | '.join(KINDS.values())} |", "|---" * (len(KINDS) + 1) + "|"]
    lines += [
        f"| {name} | {' | '.join(cell(name, kind) for kind in KINDS)} |" for name in PUBLISHED
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
