"""Chooses the newest versions that go together, package by package in the order of their priority."""

import itertools
import json
from pathlib import Path


def version(text):
    return tuple(map(int, text.split(".")))


def allows(bounds, chosen):
    for bound in bounds.split(","):
        operator, wanted = (">=", bound[2:]) if bound.startswith(">=") else ("<", bound[1:])
        if (version(chosen) >= version(wanted)) != (operator == ">="):
            return False
    return True


index, order = (json.loads(Path(name).read_text()) for name in ("index.json", "priority.json"))
choices = [[*sorted(index[name], key=version, reverse=True), None] for name in order]
for versions in itertools.product(*choices):
    lock = {name: chosen for name, chosen in zip(order, versions, strict=True) if chosen}
    needed, reached = {"app"}, set()
    while needed - reached and needed <= lock.keys():
        name = (needed - reached).pop()
        reached.add(name)
        needed |= index[name][lock[name]].keys()
    bounds = [
        (name, bound)
        for chosen in reached & lock.keys()
        for name, bound in index[chosen][lock[chosen]].items()
    ]
    if lock.keys() == needed == reached and all(
        allows(bound, lock[name]) for name, bound in bounds
    ):
        Path("lock.json").write_text(json.dumps(lock))
        break
