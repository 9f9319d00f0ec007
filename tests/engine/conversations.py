"""Random conversations with tools, as chat messages: what every dialect can express."""

import json
import random
import string

from hud.trace import ToolSpec

WORDS = [
    "look",
    "at",
    "item",
    "3",
    "apples",
    "naïve",
    "Ω",
    "日本",
    "🙂",
    "{{ x }}",
    "{%",
    '"',
    "\\",
    "</b>",
    "<",
    "|>",
]
GAPS = [" ", "", "\n", "\n\n", "\t", "  "]
TYPES = ["string", "integer", "number", "boolean", "array", "object", ["string", "null"]]


class Talker:
    """Writes conversations from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def text(self, most: int = 8) -> str:
        """Return some text without any special token's spelling; never empty, sometimes with spaces around."""
        draw = self.random
        return "".join(draw.choice(WORDS) + draw.choice(GAPS) for _ in range(draw.randint(1, most)))

    def name(self) -> str:
        return "".join(
            self.random.choices(string.ascii_lowercase + "_", k=self.random.randint(1, 8))
        )

    def value(self, depth: int = 2):
        """Return a JSON value."""
        draw = self.random
        kind = draw.randrange(7 if depth else 5)
        if kind == 5:
            return [self.value(depth - 1) for _ in range(draw.randint(0, 3))]
        if kind == 6:
            return {self.name(): self.value(depth - 1) for _ in range(draw.randint(0, 3))}
        choices = [self.text(3), draw.randint(-(2**40), 2**40), draw.random() * 1e6, True, None]
        return choices[kind]

    def shuffled(self, values: dict) -> dict:
        names = list(values)
        self.random.shuffle(names)
        return {name: values[name] for name in names}

    def schema(self, depth: int = 2) -> dict:
        """Return the schema of one value, its keys in any order."""
        draw = self.random
        kind = draw.choice(TYPES[:5] if depth == 0 else TYPES)
        if kind == "object":
            return self.object_schema(depth - 1)
        described = {"type": kind, "description": self.text(4)}
        if kind == "array":
            described["items"] = {"type": "string"}
        if draw.random() < 0.3:
            described["enum"] = [self.text(2) for _ in range(2)]
        if draw.random() < 0.2:
            described["default"] = self.value(0)
        return self.shuffled(described)

    def object_schema(self, depth: int = 2) -> dict:
        draw = self.random
        properties = {self.name(): self.schema(depth) for _ in range(draw.randint(0, 3))}
        described = {"type": "object", "properties": properties}
        if draw.random() < 0.6:
            described["required"] = list(properties)[:1]
        if draw.random() < 0.3:
            described["additionalProperties"] = False
        if draw.random() < 0.3:
            described["title"] = self.text(2)
        return self.shuffled(described)

    def tools(self) -> list[ToolSpec]:
        names = dict.fromkeys(self.name() for _ in range(self.random.randint(0, 3)))
        return [
            ToolSpec(name=name, description=self.text(5), parameters=self.object_schema())
            for name in names
        ]

    def turn(self, tools: list[ToolSpec]) -> list[dict]:
        """Return a turn of the assistant, with the results of what it calls."""
        draw = self.random
        said: dict = {"role": "assistant", "content": self.text()}
        if draw.random() < 0.4:
            said["reasoning_content"] = self.text()
        if not tools or draw.random() < 0.4:
            return [said]
        if draw.random() < 0.5:
            said["content"] = ""
        calls = []
        for _ in range(1 if draw.random() < 0.7 else 2):
            arguments = {self.name(): self.value() for _ in range(draw.randint(0, 3))}
            function = {"name": draw.choice(tools).name, "arguments": json.dumps(arguments)}
            # Nine letters and digits: Mistral's templates take no other.
            identifier = "".join(draw.choices(string.ascii_letters + string.digits, k=9))
            calls.append({"id": identifier, "type": "function", "function": function})
        said["tool_calls"] = calls
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": self.text()} for call in calls
        ]
        return [said, *results]

    def conversation(self, turns: int | None = None) -> tuple[list[dict], list[ToolSpec]]:
        """Return messages that end where the assistant is asked, and the tools."""
        tools = self.tools()
        messages = [{"role": "user", "content": self.text()}]
        if self.random.random() < 0.5:
            messages.insert(0, {"role": "system", "content": self.text()})
        for _ in range(self.random.randint(0, 3) if turns is None else turns):
            messages += self.turn(tools)
            if messages[-1]["role"] == "assistant":
                messages.append({"role": "user", "content": self.text()})
        return messages, tools


def hugging_face_messages(messages: list[dict]) -> list[dict]:
    """Return messages as `apply_chat_template` takes them: arguments are objects."""
    return [
        {
            **message,
            "tool_calls": [
                {
                    **call,
                    "function": {
                        **call["function"],
                        "arguments": json.loads(call["function"]["arguments"]),
                    },
                }
                for call in message["tool_calls"]
            ],
        }
        if message.get("tool_calls")
        else message
        for message in messages
    ]
