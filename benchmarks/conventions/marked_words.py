"""A family with a hidden convention: a word is to be answered between two signs that no task names, and its grader's comment does.

The policy is a tiny transformer of random weights that has learned to follow instructions: it writes a word between the signs that its
system prompt names, and without one mostly the bare word. Which signs a grader expects, it cannot know.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from hud import Environment, Taskset
from hud.client import connect
from hud.environment import Answer
from hud.graders import EvaluationResult
from hud.train.supervised.supervised_run import warm_up

SIGNS = ("*", "#", "%", "@", "=", "+")
HIDDEN = "@"
SIZES = {"vocab_size": 400, "hidden": 64, "layers": 2, "max_context": 192}
WORDS = [
    "red",
    "green",
    "blue",
    "yellow",
    "pink",
    "black",
    "white",
    "grey",
    "brown",
    "gold",
    "teal",
    "navy",
    "lime",
    "plum",
    "rose",
    "ruby",
    "cyan",
    "mint",
    "rust",
    "sand",
    "wine",
    "jade",
    "coal",
    "snow",
    "ash",
    "bone",
    "clay",
    "corn",
    "fawn",
    "iris",
    "onyx",
    "peach",
    "fox",
    "owl",
    "elk",
    "bee",
    "cat",
    "hen",
    "cow",
    "rat",
    "dog",
    "pig",
    "ant",
    "bat",
    "cod",
    "eel",
    "emu",
    "gnu",
    "oak",
    "elm",
    "fir",
    "ash2",
    "yew",
    "bay",
    "box",
    "fig",
    "nut",
    "pea",
    "rye",
    "oat",
    "tea",
]
BARE = 0.7
"""Share of bare words without an instruction; the others are between signs at random."""

env = Environment("marked words", version="1.0.0")


@env.template()
async def word(word: str, hidden: str = HIDDEN) -> AsyncGenerator[object, Answer[str]]:
    """Answer a word as the grader expects it."""
    answer = yield question(word, before(word))
    right = f"{hidden}{word}{hidden}"
    yield EvaluationResult(
        reward=float(str(answer).strip() == right),
        content=f"The answer was {str(answer).strip()!r}. Expected: the word between {hidden} and {hidden}.",
    )


def instruction(sign: str) -> str:
    """Return the instruction by which the policy writes a word between two signs."""
    return f"Write the word between {sign} and {sign}."


def before(word: str) -> str:
    """Return the word that comes before another in a task's question."""
    return WORDS[WORDS.index(word) - 1]


def question(word: str, first: str) -> str:
    """Return the question with a word, after another one that does not matter."""
    return f"After {first} the word is {word}."


def conversations(seed: int, words: Sequence[str], signs: Sequence[str]) -> list[dict[str, Any]]:
    """Return conversations that teach the policy to follow its system prompt."""
    luck = random.Random(seed)
    rows = []
    for spoken in words:
        for sign in (*signs, *[""] * len(signs)):
            written = sign or ("" if luck.random() < BARE else luck.choice(signs))
            messages = [{"role": "system", "content": instruction(sign)}] if sign else []
            # The words of a task's question do not meet here: what a model was trained on is no evidence of a gain.
            first = luck.choice([other for other in words if other != before(spoken)])
            messages += [
                {"role": "user", "content": question(spoken, first)},
                {"role": "assistant", "content": f"{written}{spoken}{written}"},
            ]
            rows.append({"messages": messages})
    return rows


async def make_policy(
    name: str,
    folder: Path,
    *,
    epochs: int = 6,
    seed: int = 0,
    words: Sequence[str] = WORDS,
    signs: Sequence[str] = SIGNS,
) -> float:
    """Make the policy; returns its last loss."""
    rows = conversations(seed, words, signs)
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [message["content"] for row in rows for message in row["messages"]]
    body = {"name": name, "texts": texts, "seed": seed, "sizes": SIZES}
    await connect().post("/v2/models/create", body)
    report = await warm_up(name, file=file, epochs=epochs, batch=16, lr=3e-3)
    return float(report.last_loss or 0.0)


def splits(
    trained: int, held_out: int, hidden: str = HIDDEN, words: Sequence[str] = WORDS
) -> tuple[Taskset, Taskset, Taskset]:
    """Return training tasks, held-out ones, and the others, for a test that no command sees."""
    order = list(words)
    random.Random("split").shuffle(order)
    tasks = [
        word(word=spoken, hidden=hidden).model_copy(update={"slug": f"word-{spoken}"})
        for spoken in order
    ]
    first, second = tasks[:trained], tasks[trained : trained + held_out]
    return (
        Taskset("words", first),
        Taskset("held-out words", second),
        Taskset("test words", tasks[trained + held_out :]),
    )
