"""`Chore`: something to be done in one folder, as its tree before and after, and a script that does it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hud_benchmarks.autonomy.applications.files.tree import Tree

NAMES = [
    "adams",
    "baker",
    "clark",
    "davis",
    "evans",
    "frank",
    "ghosh",
    "hills",
    "irwin",
    "jones",
    "kumar",
    "lopez",
    "mason",
    "novak",
    "ortiz",
    "patel",
    "quinn",
    "reyes",
    "silva",
    "tanaka",
    "unger",
    "vogel",
    "weber",
    "xiong",
    "young",
    "zimmer",
]
WORDS = [
    "anchor",
    "barrel",
    "candle",
    "desert",
    "engine",
    "forest",
    "garden",
    "harbor",
    "island",
    "jacket",
    "kettle",
    "ladder",
    "magnet",
    "needle",
    "orchid",
    "pepper",
    "quarry",
    "ribbon",
    "saddle",
    "timber",
    "umpire",
    "velvet",
    "window",
    "yellow",
    "zephyr",
    "bridge",
    "copper",
    "dragon",
    "ember",
    "falcon",
]


@dataclass(frozen=True)
class Chore:
    """One chore for one seed. Paths are relative to its folder."""

    request: str
    before: Tree
    wanted: Tree


@dataclass(frozen=True)
class ChoreKind:
    """A generator of chores, and what does each of them."""

    make: Callable[[Random], Chore]
    script: str
    """Commands of bash in the chore's folder, the same for every seed; steps are separated by empty lines."""

    def steps(self) -> list[str]:
        """Return the commands, one for each call of a shell tool."""
        return [step.strip("\n") for step in self.script.split("\n\n") if step.strip()]
