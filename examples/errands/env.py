"""Errands with files: one of four commands each. The workspace's files are the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

from hud import Environment
from hud.environment import WorkspaceLimits

NAMES = (
    *("amber", "black", "coral", "green", "ivory", "lemon", "olive", "white", "azure", "beige"),
    *("brown", "cream", "khaki", "maple", "ochre", "peach", "rusty", "sandy", "straw", "umber"),
)
"""Names of the files; each holds its name."""

Kind = Literal["copy", "move", "delete", "empty"]
KINDS: tuple[Kind, ...] = ("copy", "move", "delete", "empty")

env = Environment("errands", version="1.0.0")
files = env.workspace(limits=WorkspaceLimits(memory_mb=1024, disk_mb=16), track_files=False)


def text_of(kind: Kind, name: str) -> str:
    """Return the sentence of an errand."""
    return {
        "copy": f"Copy {name}.txt to copy.txt.",
        "move": f"Move {name}.txt to moved.txt.",
        "delete": f"Delete {name}.txt.",
        "empty": f"Empty {name}.txt.",
    }[kind]


def command_of(kind: Kind, name: str) -> str:
    """Return the command that does an errand."""
    return {
        "copy": f"cp {name}.txt copy.txt",
        "move": f"mv {name}.txt moved.txt",
        "delete": f"rm {name}.txt",
        "empty": f"truncate -s 0 {name}.txt",
    }[kind]


def files_after(kind: Kind, name: str) -> dict[str, str]:
    """Return the contents of the files after an errand, by name."""
    left = {other: other for other in NAMES}
    if kind == "copy":
        left["copy"] = name
    elif kind == "empty":
        left[name] = ""
    else:
        del left[name]
        if kind == "move":
            left["moved"] = name
    return left


@env.template(description="Do one errand with files.")
async def errand(kind: Kind, name: str) -> AsyncGenerator[object, str]:
    """One errand.

    Args:
        kind: What is to be done.
        name: Name of the file.
    """
    await files.bash(f"for name in {' '.join(NAMES)}; do echo $name > $name.txt; done")
    yield text_of(kind, name)
    listed = await files.bash('for file in *; do echo "$file=$(cat "$file")"; done')
    right = {f"{other}.txt={content}" for other, content in files_after(kind, name).items()}
    yield float(set(listed.stdout.splitlines()) == right)
