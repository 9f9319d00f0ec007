"""Errands to train on."""

from __future__ import annotations

from env import KINDS, NAMES, Kind, errand

HELD_OUT: tuple[tuple[Kind, str], ...] = tuple(
    (kind, NAMES[(5 * place + shift) % len(NAMES)])
    for place, kind in enumerate(KINDS)
    for shift in range(8)
)
"""Errands that training never shows: eight files of each kind, all of which occur with other kinds."""

tasks = [
    errand(kind=kind, name=name) for kind in KINDS for name in NAMES if (kind, name) not in HELD_OUT
]
