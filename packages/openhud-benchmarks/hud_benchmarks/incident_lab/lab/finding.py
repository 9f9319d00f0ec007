"""What an incident comes down to, and how an answer is held against it.

An answer is one JSON object `{"service": ..., "cause": ..., "culprit": ...}`: one service, one cause, one culprit.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

CAUSES = {
    "pool_exhaustion": "requests of one route keep all database connections of a service; the culprit is that "
    'route, as "GET /path"',
    "dropped_index": "a migration dropped an index that a service needs; the culprit is the index",
    "bad_deploy": "a new release of a service has a bug; the culprit is the release, as 1.2.3",
    "expired_certificate": "a service serves an expired certificate; the culprit is its serial number",
    "memory_leak": "something that a service remembers grows until it is killed; the culprit is the name of "
    "that memo",
    "wrong_flag": "a feature flag was turned on for which a service is not ready; the culprit is the flag",
    "dead_dependency": "a container is gone that others depend on; the culprit is the container (the service "
    "is the dead one)",
    "poisoned_message": "a message in a queue kills the service that takes it; the culprit is the message's id",
}
"""The causes, each with what its culprit is."""

SERVICE, CAUSE, CULPRIT = 0.1, 0.2, 0.7
"""What the parts of a finding are worth. Nothing counts without the right service, and the culprit, which cannot
be guessed, counts most."""
LONGEST_ANSWER = 4000
_OBJECT = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True)
class Finding:
    """Which service is at fault, why, and the one thing to point at."""

    service: str
    cause: str
    culprit: str

    def text(self) -> str:
        """Return it as an answer."""
        return json.dumps({"service": self.service, "cause": self.cause, "culprit": self.culprit})


def parse_finding(answer: str) -> Finding | None:
    """Return the one finding of an answer; None where there is none, or more than one."""
    told = parse_object(answer, ("service", "cause", "culprit"))
    return None if told is None else Finding(**told)


def parse_object(answer: str, names: tuple[str, ...]) -> dict[str, str] | None:
    """Return the one JSON object of an answer if it has these texts and nothing else.

    Whoever names several things has found nothing. Words around the object do not matter.
    """
    found = _OBJECT.findall(answer)
    if len(answer) > LONGEST_ANSWER or len(found) != 1 or answer.count("{") != 1:
        return None
    try:
        told = json.loads(found[0], object_pairs_hook=_unique)
    except ValueError:
        return None
    if set(told) != set(names) or not all(isinstance(told[name], str) for name in names):
        return None
    return {name: told[name].strip() for name in names}


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)
