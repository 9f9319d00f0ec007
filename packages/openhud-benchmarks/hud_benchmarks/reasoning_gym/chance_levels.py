"""Chance levels: `python -m hud_benchmarks.reasoning_gym.chance_levels` writes chance_levels.json.

Run it (about 10 minutes) when the package's version changes, and for a generator that is added.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from hud_benchmarks.reasoning_gym.generators import GENERATORS, indices
from hud_benchmarks.reasoning_gym.items import item

LEAST = 0.05
"""Chance level from which on a generator is in the file."""


def chance_level(generator: str) -> float:
    """Return the share of the held-out tasks that have the most frequent of their answers."""
    answers = Counter(
        item(generator, "held-out", index)["answer"] for index in indices(generator, "held-out")
    )
    return round(answers.most_common(1)[0][1] / answers.total(), 2)


def _write(path: Path) -> None:
    levels = {generator: chance_level(generator) for generator in GENERATORS}
    above_least = {generator: level for generator, level in levels.items() if level > LEAST}
    path.write_text(json.dumps(above_least, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    _write(Path(__file__).with_suffix(".json"))
