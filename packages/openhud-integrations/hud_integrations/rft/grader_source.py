"""The python grader of RFT: the source of our comparisons in one self-contained text, and a function that applies a rule."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from hud.graders import comparisons, normalization, numbers
from hud_integrations.rft.grading_rule import COMPARISONS

_GRADE = '''

def grade(sample, item):
    """Return the reward of a sampled answer, by the rule of its row."""
    return apply(item["hud"], sample.get("output_text") or "")


def apply(rule, answer):
    if "sum" in rule:
        return rule["plus"] + sum(weight * apply(part, answer) for weight, part in rule["sum"])
    return GRADERS[rule["grader"]](answer, *rule["arguments"], **rule["options"])
'''


def python_grader() -> dict[str, Any]:
    """Return the grader object: its source defines `grade(sample, item)`, and needs the standard library alone."""
    return {"type": "python", "name": "openhud", "source": _source()}


@cache
def _source() -> str:
    modules = (normalization, numbers, comparisons)
    texts = [_without_imports_of_ours(inspect.getsource(module)) for module in modules]
    names = ", ".join(f'"{name}": {name}' for name in COMPARISONS)
    head = "from __future__ import annotations\n"
    return head + "\n".join(texts) + f"\n\nGRADERS = {{{names}}}\n" + _GRADE


def _without_imports_of_ours(source: str) -> str:
    left_out = ("from hud.", "from __future__ import")
    return "\n".join(line for line in source.splitlines() if not line.startswith(left_out))
