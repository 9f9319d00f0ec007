"""A tiny random policy for tests, made once."""

import functools
import tempfile
from pathlib import Path

from hud.engine.policy import Policy
from hud.engine.tiny import create_tiny
from hud.trace import ToolSpec

TOOLS = [
    ToolSpec(
        name="look",
        description="Look.",
        parameters={"type": "object", "properties": {"at": {"type": "integer"}}},
    )
]
TEXTS = [
    f'look at item {n}: {{"name": "look", "arguments": {{"at": {n}}}}} the answer is {n} apples'
    for n in range(200)
]


@functools.cache
def tiny_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tiny-"))
    create_tiny(folder, TEXTS, vocab_size=400, hidden=32, layers=2, max_context=512)
    return folder


def tiny_policy(**options: int) -> Policy:
    return Policy.load(tiny_folder(), **options)
