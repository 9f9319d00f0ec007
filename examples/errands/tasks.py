"""Errands to train on."""

from __future__ import annotations

import random
from itertools import permutations, product

from env import NAMES, WORDS, errand

HELD_OUT = 6
"""Held-out errands of each kind."""


def split() -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]]]:
    """Return the errands to train on, and those held out: other pairs of the same names."""
    trained, held_out = [], []
    for number, kind in enumerate(("write", "copy", "move")):
        pairs = list(product(WORDS, NAMES) if kind == "write" else permutations(NAMES, 2))
        random.Random(number).shuffle(pairs)
        held_out += [(kind, *pair) for pair in pairs[:HELD_OUT]]
        trained += [(kind, *pair) for pair in pairs[HELD_OUT:]]
    return [*trained, *(("delete", name, "") for name in NAMES)], held_out


tasks = [errand(kind=kind, first=first, second=second) for kind, first, second in split()[0]]
