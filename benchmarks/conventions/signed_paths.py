"""Two families of paths by signs: one that practice improves, and one whose reward is a coin.

Three signs are shown, and a path is to be named for each. The policy, a tiny transformer of random weights, imitates a walker that
knows a third of the signs. Held-out tasks have rows of signs that no training task has.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator
from itertools import product
from pathlib import Path
from typing import Any

from hud import Environment, Taskset
from hud.client import connect
from hud.environment import Answer
from hud.train.supervised.supervised_run import warm_up

SIGNS = ("fox", "owl", "elk", "bee", "cat", "hen", "cow", "rat")
PATHS = ("left", "right", "up", "down")
MEANING = {sign: PATHS[number % len(PATHS)] for number, sign in enumerate(SIGNS)}
KNOWN = 0.35
SIZES = {"vocab_size": 400, "hidden": 64, "layers": 2, "max_context": 128}
ROWS = 3
IMITATED = 600
coin = random.Random("coin")

env = Environment("signed paths", version="1.0.0")


def right_share(signs: list[str], answer: str) -> float:
    """Return the share of signs whose path is named in its place."""
    named = answer.split()
    if len(named) != len(signs):
        return 0.0
    return sum(MEANING[sign] == path for sign, path in zip(signs, named, strict=True)) / len(signs)


@env.template()
async def paths(signs: list[str]) -> AsyncGenerator[object, Answer[str]]:
    """Name the path of each sign."""
    answer = yield " ".join(signs)
    yield right_share(signs, str(answer))


@env.template()
async def coins(signs: list[str]) -> AsyncGenerator[object, Answer[str]]:
    """Name paths for a reward that they have no part in."""
    yield " ".join(signs)
    yield float(coin.random() < 0.5)


async def make_walker(name: str, folder: Path, *, epochs: int = 3, seed: int = 0) -> float:
    """Make the policy; returns its last loss."""
    luck, rows = random.Random(seed), []
    for _ in range(IMITATED):
        signs = luck.choices(SIGNS, k=ROWS)
        said = [MEANING[sign] if luck.random() < KNOWN else luck.choice(PATHS) for sign in signs]
        messages = [
            {"role": "user", "content": " ".join(signs)},
            {"role": "assistant", "content": " ".join(said)},
        ]
        rows.append({"messages": messages})
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [message["content"] for row in rows for message in row["messages"]]
    body: dict[str, Any] = {"name": name, "texts": texts, "seed": seed, "sizes": SIZES}
    await connect().post("/v2/models/create", body)
    report = await warm_up(name, file=file, epochs=epochs, batch=16, lr=2e-3)
    return float(report.last_loss or 0.0)


def splits(template: Any, trained: int, held_out: int, tested: int) -> tuple[Taskset, ...]:
    """Return training tasks, held-out ones, and a test set that no command sees."""
    rows = list(product(SIGNS, repeat=ROWS))
    random.Random("rows").shuffle(rows)
    tasks = [
        template(signs=list(row)).model_copy(update={"slug": f"signs-{'-'.join(row)}"})
        for row in rows[: trained + held_out + tested]
    ]
    second = trained + held_out
    return (
        Taskset("signs", tasks[:trained]),
        Taskset("held-out signs", tasks[trained:second]),
        Taskset("test signs", tasks[second:]),
    )
