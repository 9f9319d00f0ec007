"""Families of tasks: tasks of one template or data set, recognized by their slugs.

Intervals treat tasks as independent samples. Tasks of one family are alike, so a comparison over few families says little
about others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hud.eval.results.paired_differences import FEWEST_TASKS

_MEMBER = re.compile(r"(?:[-_.](?:\d+|[0-9a-f]{8}))+$|\d+$")
"""End of a slug that tells members of a family apart: numbers, and digests of arguments."""


def family_of(slug: str) -> str:
    """Return the family of a task: `sum` of `sum-3`, `sum-0a1b2c3d` and `sum-0a1b2c3d-2`."""
    return _MEMBER.sub("", slug) or slug


def few_families(slugs: Iterable[str]) -> str | None:
    """Return a note for tasks of two to five families; None for one family, for more, and for tasks all unlike."""
    members = list(slugs)
    families = sorted({family_of(slug) for slug in members})
    if not 1 < len(families) < min(FEWEST_TASKS, len(members)):
        return None
    return (
        f"The {len(members)} tasks come in {len(families)} families ({', '.join(families)}). Tasks of a family are alike, so the "
        "interval holds for these families, not for others."
    )
