"""Errands with files: one command each, such as a copy. The workspace's files are the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal

from hud import Environment
from hud.environment import WorkspaceLimits

NAMES = ("amber", "black", "coral", "green", "ivory", "lemon")
"""Names of the files; each holds its name."""
WORDS = ("apple", "bread", "chalk", "dough", "fudge", "grain")
Kind = Literal["write", "copy", "move", "delete"]

env = Environment("errands", version="1.0.0")
files = env.workspace(limits=WorkspaceLimits(memory_mb=1024, disk_mb=16), track_files=False)


def text_of(kind: Kind, first: str, second: str) -> str:
    """Return the sentence of an errand."""
    return {
        "write": f"Write {first} to {second}.txt.",
        "copy": f"Copy {first}.txt to {second}.txt.",
        "move": f"Move {first}.txt to {second}.txt.",
        "delete": f"Delete {first}.txt.",
    }[kind]


def command_of(kind: Kind, first: str, second: str) -> str:
    """Return the command that does an errand."""
    return {
        "write": f"echo {first} > {second}.txt",
        "copy": f"cp {first}.txt {second}.txt",
        "move": f"mv {first}.txt {second}.txt",
        "delete": f"rm {first}.txt",
    }[kind]


def right_files(kind: Kind, first: str, second: str) -> dict[str, str]:
    """Return the words in the files after an errand, by name."""
    left = {name: name for name in NAMES}
    if kind == "write":
        left[second] = first
    elif kind == "copy":
        left[second] = left[first]
    else:
        moved = left.pop(first)
        if kind == "move":
            left[second] = moved
    return left


@env.template(description="Do one errand with files.")
async def errand(kind: Kind, first: str, second: str = "") -> AsyncGenerator[object, str]:
    """One errand.

    Args:
        kind: What is to be done.
        first: Word, or name of the file.
        second: Name of the other file, where there is one.
    """
    await files.bash(f"for name in {' '.join(NAMES)}; do echo $name > $name.txt; done")
    yield text_of(kind, first, second)
    listed = await files.bash("grep -r '' .")
    wanted = {f"./{name}.txt:{word}" for name, word in right_files(kind, first, second).items()}
    yield float(set(listed.stdout.split("\n")) - {""} == wanted)
