"""Items that are no tasks: `python -m hud_benchmarks.reasoning_gym.left_out_items` writes left_out_items.json.

Run it (about 10 minutes) when the package's version changes, and for a generator that is added.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from hud.benchmarks.benchmark import Split
from hud_benchmarks.reasoning_gym.generators import GENERATORS, ITEMS
from hud_benchmarks.reasoning_gym.items import item
from hud_benchmarks.reasoning_gym.oracle import answer_of
from hud_benchmarks.reasoning_gym.scoring import score


async def left_out(generator: str) -> dict[Split, list[int]]:
    """Return the items of each split whose question is a held-out task's already, or whose stored answer fails."""
    earlier: set[str] = set()
    items_by_split: dict[Split, list[int]] = {"held-out": [], "train": []}
    for split in items_by_split:
        new = set()
        for index in range(ITEMS[split]):
            question = item(generator, split, index)["question"]
            repeated = question in earlier or (split == "held-out" and question in new)
            reward, _ = await score(
                generator, split, index, answer_of(generator=generator, split=split, index=index)
            )
            if repeated or reward < 1.0:
                items_by_split[split].append(index)
            new.add(question)
        earlier |= new
    return items_by_split


def _write(path: Path) -> None:
    items_by_split: dict[Split, dict[str, list[int]]] = {"train": {}, "held-out": {}}
    for generator in GENERATORS:
        for split, items in asyncio.run(left_out(generator)).items():
            if items:
                items_by_split[split][generator] = items
    blocks = []
    for split, lists in items_by_split.items():
        rows = (f'"{generator}": {json.dumps(items)}' for generator, items in lists.items())
        blocks.append(f'"{split}": {{\n' + ",\n".join(rows) + "\n}")
    path.write_text("{" + ",\n".join(blocks) + "}\n", encoding="utf-8")


if __name__ == "__main__":
    _write(Path(__file__).with_suffix(".json"))
